"use strict";
// Small drawing tools: scales, axes, marks that answer to pointer and keyboard. No library.
const DATA = JSON.parse(document.getElementById("data").textContent);
const R = DATA.report, W = DATA.words, NAMES = DATA.names, LANG = DATA.lang;
const SVG = "http://www.w3.org/2000/svg";
const ARMS = [...new Set(R.cells.map((c) => c.arm))];
const say = (key, values = {}) =>
  W[key].replace(/\{(\w+)\}/g, (all, name) => (name in values ? values[name] : all));
const named = (name) => NAMES[name] || String(name).replace(/_/g, " ");
const loadLabel = (load) =>
  load.model === "closed" ? `closed-${load.max_concurrency}` : `open-${load.request_rate}`;

function color(arm) { return `var(--c${Math.max(0, ARMS.indexOf(arm)) % 8})`; }

function number(value) { // three significant digits, as in the tables
  const size = Math.abs(value);
  if (size >= 99.95) return value.toFixed(0);
  if (size >= 9.995) return value.toFixed(1);
  if (size >= 0.9995 || size === 0) return value.toFixed(2);
  return Number(value.toPrecision(3)).toString();
}
const percent = (value) => `${(value * 100).toFixed(0)}%`;
function interval(e, format = number) {
  if (!e) return "–";
  if (e.low === null) return format(e.point);
  return `${format(e.point)} (${format(e.low)}${e.low < 0 ? W.to : "–"}${format(e.high)})`;
}

function html(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
function svg(tag, attributes = {}, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function scale(domain, range) {
  const [a, b] = domain, [c, d] = range;
  return (value) => c + ((value - a) / (b - a || 1)) * (d - c);
}
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw) || raw;
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step)
    found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return found;
}
const tickText = (value) => Number(value.toPrecision(6)).toString();

// One drawing: an svg at its real size, so that text stays readable on a phone.
function canvas(parent, height, label) {
  const width = Math.max(240, Math.floor(parent.clientWidth));
  const node = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    tabindex: 0, "aria-label": label });
  parent.append(node);
  node.addEventListener("keydown", stepThrough);
  node.addEventListener("blur", hideTip);
  return { node, width, height };
}
const PEN = document.createElement("canvas").getContext("2d");
const FONT = getComputedStyle(document.body).fontFamily;
function textWidth(text, weight = 400) { // of a chart's text, in pixels
  PEN.font = `${weight} 12.5px ${FONT}`;
  return PEN.measureText(String(text)).width;
}

const tip = html("div", { id: "tip", role: "status", hidden: "" });
document.body.append(tip);
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 12, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y - box.height - 10 < 4 ? y + 16 : y - box.height - 10}px`;
}
function hideTip() { tip.hidden = true; }
addEventListener("scroll", hideTip, { passive: true });

function withTip(node, text) { // a mark: hover, touch, and arrow keys in its chart
  node.classList.add("mark-data");
  node.dataset.tip = text;
  node.addEventListener("pointerenter", (event) => showTip(text, event.clientX, event.clientY));
  node.addEventListener("pointerleave", hideTip);
  return node;
}
function stepThrough(event) {
  if (!["ArrowRight", "ArrowLeft", "Escape"].includes(event.key)) return;
  const chart = event.currentTarget;
  const marks = [...chart.querySelectorAll(".mark-data")];
  const now = marks.findIndex((mark) => mark.classList.contains("mark-active"));
  marks.forEach((mark) => mark.classList.remove("mark-active"));
  if (event.key === "Escape" || !marks.length) return hideTip();
  const next = (now + (event.key === "ArrowRight" ? 1 : -1) + marks.length) % marks.length;
  event.preventDefault();
  marks[now < 0 && event.key === "ArrowRight" ? 0 : next].classList.add("mark-active");
  const active = chart.querySelector(".mark-active"), box = active.getBoundingClientRect();
  showTip(active.dataset.tip, box.left + box.width / 2, box.top);
}

const SHAPES = [
  (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
  (r) => `M${-r},${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (r) => `M0,${-1.25 * r}L${1.2 * r},${0.9 * r}H${-1.2 * r}z`,
  (r) => `M0,${-1.3 * r}L${1.3 * r},0L0,${1.3 * r}L${-1.3 * r},0z`,
];
function point(arm, x, y, { r = 4.5, hollow = false, opacity = 1 } = {}) {
  const shape = SHAPES[Math.max(0, ARMS.indexOf(arm)) % SHAPES.length];
  const style = hollow ? `fill:var(--ground);stroke:${color(arm)};stroke-width:1.5`
    : `fill:${color(arm)};stroke:var(--ground);stroke-width:0.7`;
  return svg("path", { d: shape(r), transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`, style,
    opacity, class: "mark" });
}
function whisker(node, x1, y1, x2, y2, arm) {
  const style = `stroke:${arm ? color(arm) : "var(--text)"};stroke-width:1.6`;
  node.append(svg("line", { x1, y1, x2, y2, style }));
  const vertical = Math.abs(x1 - x2) < 0.01, cap = 4;
  for (const [x, y] of [[x1, y1], [x2, y2]])
    node.append(svg("line", vertical ? { x1: x - cap, x2: x + cap, y1: y, y2: y, style }
      : { x1: x, x2: x, y1: y - cap, y2: y + cap, style }));
}
function yAxis(node, y, values, left, right, format = tickText) {
  for (const value of values) {
    node.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }));
    node.append(svg("text", { class: "soft", x: left - 7, y: y(value) + 4, "text-anchor": "end" },
      format(value)));
  }
}
function xAxis(node, x, values, y, format = tickText, title = "", right = 0) {
  for (const value of values) {
    node.append(svg("line", { class: "axis", x1: x(value), x2: x(value), y1: y, y2: y + 4 }));
    node.append(svg("text", { class: "soft", x: x(value), y: y + 17, "text-anchor": "middle" },
      format(value)));
  }
  if (title) node.append(svg("text", { class: "soft", x: right, y: y + 33, "text-anchor": "end" },
    title));
}
function legend(arms, more = []) {
  const box = html("div", { class: "legend" });
  for (const arm of arms) {
    const picture = svg("svg", { width: 12, height: 12, viewBox: "-7 -7 14 14" });
    picture.append(point(arm, 0, 0, { r: 5 }));
    box.append(html("span", {}, picture, arm));
  }
  for (const [style, text] of more) {
    const picture = svg("svg", { width: 22, height: 10, viewBox: "0 0 22 10" });
    picture.append(style === "base" ? svg("line", { class: "base", x1: 0, x2: 22, y1: 5, y2: 5 })
      : svg("rect", { x: 0, y: 0, width: 22, height: 10, rx: 2, style }));
    box.append(html("span", {}, picture, text));
  }
  return box;
}
function table(heads, rows) { // the numbers of a chart, for those who do not see it
  return html("details", {}, html("summary", {}, W.numbers), html("div", { class: "scroll" },
    html("table", {}, html("thead", {}, html("tr", {}, ...heads.map((h) => html("th", {}, h)))),
      html("tbody", {}, ...rows.map((row) =>
        html("tr", {}, ...row.map((value) => html("td", {}, String(value)))))))));
}
