// The charts. Each takes its place in the page and what is chosen; numbers come from the report.
const CHOICE = { scenario: new Set(), arm: new Set(), load: new Set() };
const STATE = { dimension: null };
const shown = (item, load) => CHOICE.scenario.has(item.scenario) && CHOICE.arm.has(item.arm)
  && (load === undefined || CHOICE.load.has(load));
const cellsShown = () => R.cells.filter((c) => shown(c, loadLabel(c.load)));
const manyLoads = new Set(R.cells.map((c) => loadLabel(c.load))).size > 1;
const pathOf = (item) => item.scenario + (manyLoads
  ? ` · ${typeof item.load === "string" ? item.load : loadLabel(item.load)}` : "");
function groups(items, key = pathOf) {
  const found = new Map();
  for (const item of items) found.set(key(item), [...(found.get(key(item)) || []), item]);
  const place = (items) => R.cells.findIndex((c) => c.scenario === items[0].scenario);
  return [...found].sort((a, b) => place(a[1]) - place(b[1]));
}
// Every panel stands before the first is drawn: their number decides their width.
function lay(place, entries) {
  const grid = place.appendChild(html("div", { class: "panels" }));
  for (const [title, items] of entries)
    items.panel = grid.appendChild(html("div", { class: "panel" }, html("h3", {}, title)));
  return entries;
}
const armsOf = (items) => ARMS.filter((arm) => items.some((item) => item.arm === arm));

const CHARTS = {
  speed(place) {
    const cells = cellsShown().filter((c) => c.decode_tokens_per_s);
    if (!cells.length) return false;
    const panel = html("div", { class: "panel" });
    place.append(panel);
    const byPath = groups(cells);
    const rows = cells.length, height = byPath.length * 30 + rows * 26 + 44;
    const { node, width } = canvas(panel, height, W.chart_speed);
    const left = Math.min(width * 0.32, Math.max(...cells.map((c) => textWidth(c.arm))) + 26);
    const top = Math.max(...cells.map((c) => c.decode_tokens_per_s.high ?? c.decode_tokens_per_s.point));
    const room = width < 560 ? 52 : 150;
    const x = scale([0, top], [left, width - room]);
    let y = 4;
    for (const value of ticks(0, top, width / 110))
      node.append(svg("line", { class: "grid", x1: x(value), x2: x(value), y1: 8, y2: height - 40 }));
    xAxis(node, x, ticks(0, top, width / 110), height - 42, tickText, W.speed, width - room);
    for (const [path, mine] of byPath) {
      node.append(svg("text", { x: 0, y: y + 17, style: "font-weight:600" }, fitted(path, width, 600)));
      y += 27;
      for (const cell of mine) {
        const e = cell.decode_tokens_per_s;
        node.append(svg("text", { x: 12, y: y + 14 }, fitted(cell.arm, left - 20)));
        node.append(withTip(svg("rect", { x: left, y: y + 1, height: 18, rx: 3, class: "mark",
          width: Math.max(1, x(e.point) - left), style: `fill:${color(cell.arm)}`, opacity: 0.85 }),
          `${path} × ${cell.arm}\n${interval(e)} tok/s`));
        if (e.low !== null) whisker(node, x(e.low), y + 10, x(e.high), y + 10);
        const text = width < 560 ? number(e.point) : interval(e);
        node.append(svg("text", { x: x(e.high ?? e.point) + 9, y: y + 14, class: "soft" }, text));
        y += 26;
      }
      y += 3;
    }
    place.append(table([W.scenario, W.arm, W.speed],
      cells.map((c) => [pathOf(c), c.arm, interval(c.decode_tokens_per_s)])));
    return true;
  },

  positions(place) {
    const cells = cellsShown().filter((c) => c.acceptance && c.acceptance.per_position);
    if (!cells.length) return false;
    for (const [path, mine] of lay(place, groups(cells))) {
      const { node, x, y } = frame(mine.panel, path, 220, [0.7,
        Math.max(...mine.map((c) => c.acceptance.per_position.length)) + 0.3], [0, 1], {
        xValues: (top) => [...Array(Math.floor(top)).keys()].map((i) => i + 1),
        yFormat: percent, xTitle: W.position_axis, yTitle: W.accepted });
      for (const cell of mine) {
        const values = cell.acceptance.per_position;
        line(node, values.map((v, i) => [x(i + 1), y(v)]), cell.arm);
        values.forEach((value, i) => node.append(withTip(point(cell.arm, x(i + 1), y(value)),
          `${cell.arm}\n${say("share_at_least", { n: i + 1 })}: ${percent(value)}`)));
      }
    }
    place.append(legend(armsOf(cells)));
    place.append(table([W.scenario, W.arm, ...longest(cells).map((_, i) => i + 1)],
      cells.map((c) => [pathOf(c), c.arm, ...c.acceptance.per_position.map(percent)])));
    return true;
  },

  curve(place) {
    const found = predictedSpeedups().filter((p) => shown(p, loadLabel(p.load)));
    const measured = R.comparisons.filter((c) => c.ratio && shown(c, loadLabel(c.load))
      && draftOf(c) && !draftOf({ ...c, arm: c.baseline }));
    if (!found.length && !measured.length) return false;
    for (const [path, mine] of lay(place, groups([...found, ...measured]))) {
      const bands = mine.filter((p) => p.rows), dots = mine.filter((p) => !p.rows);
      const tops = [1, ...bands.flatMap((p) => p.rows.map((r) => r.speedup.high ?? r.speedup.point)),
        ...dots.map((c) => c.ratio.high ?? c.ratio.point)];
      const maxK = Math.max(...bands.flatMap((p) => p.rows.map((r) => r.num_speculative_tokens)),
        ...dots.map(draftOf));
      const { node, x, y } = frame(mine.panel, path, 250, [-0.3, maxK + 0.4], [0, Math.max(...tops) * 1.06],
        { xValues: () => [...Array(maxK + 1).keys()], xTitle: W.draft_length, yTitle: W.speedup,
          yFormat: (v) => `×${tickText(v)}` });
      for (const band of bands) predictedBand(node, x, y, band);
      node.append(svg("line", { class: "base", x1: x(-0.3), x2: x(maxK + 0.4), y1: y(1), y2: y(1) }));
      dots.forEach((c, i) => {
        const at = x(draftOf(c)) + (i - (dots.length - 1) / 2) * 6;
        if (c.ratio.low !== null) whisker(node, at, y(c.ratio.low), at, y(c.ratio.high), c.arm);
        node.append(withTip(point(c.arm, at, y(c.ratio.point), { r: 5.5 }),
          `${c.arm}, k = ${draftOf(c)}, ${W.measured}\n×${interval(c.ratio)}`));
      });
    }
    place.append(legend(armsOf([...found, ...measured]), [["base", W.break_even]]));
    place.append(table([W.scenario, W.arm, "k", W.measured, W.predicted], [
      ...measured.map((c) => [pathOf(c), c.arm, draftOf(c), `×${interval(c.ratio)}`, ""]),
      ...found.flatMap((p) => p.rows.map((r) =>
        [pathOf(p), p.arm, r.num_speculative_tokens, "", `×${interval(r.speedup)}${r.extrapolated ? "*" : ""}`]))]));
    return true;
  },

  bytes(place) {
    const found = R.explanation || {};
    const steps = (found.steps || []).filter((s) => shown(s, loadLabel(s.load)));
    const times = (found.speculation || []).filter((s) => shown(s, loadLabel(s.load)));
    if (!steps.length && !times.length) return false;
    const once = [...new Map(steps.map((s) => [`${s.arm} ${s.model}`, s])).values()];
    if (once.length) byteBars(place, once);
    if (times.length) timeBars(place, times);
    return true;
  },

  time(place) {
    const rows = R.requests ? R.requests.rows.filter((r) => shown(r, r.load) && r.decode_tokens_per_s) : [];
    if (!rows.length) return repeats(place);
    for (const [path, mine] of lay(place, groups(rows))) {
      const times = mine.map((r) => r.at_s), speeds = mine.map((r) => r.decode_tokens_per_s);
      const { node, x, y } = frame(mine.panel, path, 230, [Math.min(0, ...times), Math.max(...times) || 1],
        [0, Math.max(...speeds) * 1.06], { xTitle: W.seconds_in_pass, yTitle: W.speed });
      for (const [, series] of groups(mine.filter((r) => !r.warmup), (r) => `${r.arm} ${r.repeat}`))
        line(node, series.map((r) => [x(r.at_s), y(r.decode_tokens_per_s)]), series[0].arm, 0.35);
      for (const r of mine)
        node.append(withTip(point(r.arm, x(r.at_s), y(r.decode_tokens_per_s),
          { r: 3.2, hollow: Boolean(r.warmup), opacity: 1 - 0.45 * (r.repeat / Math.max(1, R.num_repeats - 1 || 1)) }),
          `${r.arm}, ${W.repeat_number} ${r.repeat + 1}\n${r.conversation_id}, ${W.turn_number} ${r.turn + 1}`
          + `\n${number(r.decode_tokens_per_s)} tok/s${r.warmup ? `\n${W.warmup}` : ""}`));
    }
    place.append(legend(armsOf(rows)));
    return true;
  },

  segments(place, controls) {
    const rates = R.segments ? R.segments.rates : [];
    const own = rates.filter((r) => CHOICE.arm.has(r.arm) && CHOICE.load.has(r.load)
      && (!r.scenario || CHOICE.scenario.has(r.scenario)));
    const order = ["part", "block", "characters", "sentence", "position", "context", "turn",
      "scenario", "temperature"];
    const dimensions = order.filter((d) => own.some((r) => r.dimension === d));
    if (!dimensions.length) return false;
    if (!dimensions.includes(STATE.dimension))
      STATE.dimension = dimensions.includes("characters") ? "characters" : dimensions[0];
    controls.append(...dimensions.map((d) => html("button", { type: "button", class: "choice",
      "aria-pressed": String(d === STATE.dimension),
      onclick: () => { STATE.dimension = d; redraw(["segments"]); controls.querySelector("[aria-pressed=true]").focus(); } },
      dimensionName(d))));
    const mine = own.filter((r) => r.dimension === STATE.dimension);
    const titled = (r) => (r.scenario ? `${pathOf(r)} × ${r.arm}` : r.arm);
    for (const [title, part] of lay(place, groups(mine, titled))) segmentPanel(part.panel, title, part);
    place.append(table([W.scenario, W.arm, W.segment, W.steps, W.accepted, `${W.difference} (${W.points})`],
      mine.map((r) => [r.scenario || W.all, r.arm, named(r.segment), r.num_steps, interval(r.rate, percent),
        r.difference ? interval(r.difference, (v) => (v * 100).toFixed(0)) : "–"])));
    return true;
  },
};

const dimensionName = (d) => W[d === "sentence" ? "sentence_dimension" : d];
function predictedSpeedups() { // of the decision: every path's draft lengths
  const choices = R.decision ? R.decision.choices : [];
  return choices.flatMap((choice) => choice.draft_lengths.map((length) => ({ scenario: choice.scenario,
    load: choice.load, arm: length.best_k.arm, rows: length.best_k.rows, best: length.best_k.best })));
}
function draftOf(comparison) {
  const cell = R.cells.find((c) => c.arm === comparison.arm && pathOf(c) === pathOf(comparison));
  return cell ? cell.num_speculative_tokens : null;
}
function predictedBand(node, x, y, band) {
  const rows = band.rows, style = `stroke:${color(band.arm)};stroke-width:1.5`;
  const xs = rows.map((r) => x(r.num_speculative_tokens)), ends = (r, name) => y(r.speedup[name] ?? r.speedup.point);
  const edge = [...rows.map((r, i) => [xs[i], ends(r, "high")]), ...rows.map((r, i) => [xs[i], ends(r, "low")]).reverse()];
  node.append(svg("polygon", { points: edge.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" "),
    class: "mark", style: `fill:${color(band.arm)}`, "fill-opacity": 0.16 }));
  node.append(svg("polyline", { points: rows.map((r, i) => `${xs[i].toFixed(1)},${y(r.speedup.point).toFixed(1)}`).join(" "),
    style: `fill:none;stroke-dasharray:2 3;${style}` }));
  rows.forEach((r, i) => {
    const best = r.num_speculative_tokens === band.best;
    node.append(withTip(svg("circle", { cx: xs[i], cy: y(r.speedup.point), r: best ? 5 : 3,
      style: `${style};fill:${best ? color(band.arm) : "var(--ground)"}`, opacity: r.extrapolated ? 0.5 : 1 }),
      `${band.arm}, k = ${r.num_speculative_tokens}, ${W.predicted}${best ? ` (${W.best})` : ""}\n×${interval(r.speedup)}`
      + (r.extrapolated ? `\n${W.extrapolated}` : "")));
  });
}
const longest = (cells) => cells.map((c) => c.acceptance.per_position)
  .reduce((a, b) => (b.length > a.length ? b : a), []);
function fitted(text, width, weight) {
  if (textWidth(text, weight) <= width) return text;
  let kept = text;
  while (kept.length > 3 && textWidth(`${kept}…`, weight) > width) kept = kept.slice(0, -1);
  return `${kept}…`;
}
function frame(panel, title, height, xs, ys, { xValues, xFormat = tickText, yFormat = tickText,
  xTitle = "", yTitle = "" } = {}) {
  const box = canvas(panel, height, title);
  const yTicks = ticks(ys[0], ys[1], 4);
  const left = Math.max(...yTicks.map((v) => textWidth(yFormat(v)))) + 12;
  const bottom = height - (xTitle ? 40 : 24);
  const x = scale(xs, [left, box.width - 10]), y = scale(ys, [bottom, yTitle ? 24 : 8]);
  if (yTitle) box.node.append(svg("text", { class: "soft", x: 0, y: 11 }, yTitle));
  yAxis(box.node, y, yTicks, left, box.width - 4, yFormat);
  xAxis(box.node, x, xValues ? xValues(xs[1]) : ticks(xs[0], xs[1], box.width / 80), bottom, xFormat,
    xTitle, box.width - 6);
  return { node: box.node, x, y, box };
}
function line(node, points, arm, opacity = 0.9) {
  node.append(svg("polyline", { points: points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" "),
    style: `fill:none;stroke:${color(arm)};stroke-width:2`, opacity }));
}
function repeats(place) {
  const cells = cellsShown().filter((c) => c.repeats.filter((r) => r.decode_tokens_per_s).length > 1);
  if (!cells.length) return false;
  for (const [path, mine] of lay(place, groups(cells))) {
    const points = mine.flatMap((c) => c.repeats.map((r) => r.decode_tokens_per_s || 0));
    const count = Math.max(...mine.map((c) => c.repeats.length));
    const { node, x, y } = frame(mine.panel, path, 220, [0.7, count + 0.3], [0, Math.max(...points) * 1.08],
      { xValues: () => [...Array(count).keys()].map((i) => i + 1), xTitle: W.repeat_number, yTitle: W.speed });
    for (const cell of mine) {
      const known = cell.repeats.filter((r) => r.decode_tokens_per_s);
      line(node, known.map((r) => [x(r.repeat + 1), y(r.decode_tokens_per_s)]), cell.arm);
      for (const r of known) node.append(withTip(point(cell.arm, x(r.repeat + 1), y(r.decode_tokens_per_s)),
        `${cell.arm}, ${W.repeat_number} ${r.repeat + 1}\n${number(r.decode_tokens_per_s)} tok/s`));
    }
  }
  place.append(legend(armsOf(cells)));
  return true;
}
const PART_ORDER = ["attention", "linear", "mlp", "experts", "shared", "router", "norm", "head", "kv",
  "state", "embedding", "draft_layer", "draft_experts", "draft_head", "draft_kv", "draft_state"];
const partColor = (name) => {
  const i = PART_ORDER.indexOf(name);
  return name.startsWith("draft") ? `hsl(${24 + (i - 11) * 9} 75% ${46 + (i - 11) * 6}%)`
    : `hsl(${205 + Math.max(0, i) * 14} ${52 - Math.max(0, i) * 2}% ${40 + (Math.max(0, i) % 5) * 8}%)`;
};
function bars(place, title, rows, top, format) {
  const panel = html("div", { class: "panel" }, html("h3", {}, title));
  place.append(panel);
  const height = rows.length * 46 + 22;
  const { node, width } = canvas(panel, height, title);
  const x = scale([0, top], [4, width - 62]);
  rows.forEach((row, i) => {
    const y = i * 46;
    node.append(svg("text", { x: 4, y: y + 13 }, fitted(row.title, width - 4)));
    let from = 0;
    for (const part of row.parts) {
      const w = x(Math.abs(part.value)) - x(0), start = part.value < 0 ? x(from) - w : x(from);
      node.append(withTip(svg("rect", { x: start, y: y + 18, width: Math.max(0.5, w - 0.7), height: 20,
        class: "mark", style: part.style, "fill-opacity": part.value < 0 ? 0.4 : 1 }),
        `${row.title}\n${part.name}: ${format(part.value)}${part.share === undefined ? "" : ` (${percent(part.share)})`}`));
      from += part.value;
    }
    node.append(svg("text", { class: "soft", x: x(row.end ?? from) + 7, y: y + 33 }, format(row.end ?? from)));
  });
  const values = ticks(0, top, width / 120);
  xAxis(node, x, values, height - 20);
}
function byteBars(place, steps) {
  const top = Math.max(...steps.map((s) => s.read_bytes)) / 1e9;
  bars(place, W.bytes_of_step, steps.map((s) => ({
    title: `${s.arm} · ${s.model}${s.num_speculative_tokens ? ` · k = ${s.num_speculative_tokens}` : ""}`,
    end: s.read_bytes / 1e9,
    parts: s.parts.map((p) => ({ name: named(p.name), value: p.num_bytes / 1e9, share: p.share,
      style: `fill:${partColor(p.name)}` })) })), top, (v) => `${number(v)} GB`);
  const names = PART_ORDER.filter((n) => steps.some((s) => s.parts.some((p) => p.name === n && p.share >= 0.005)));
  place.append(legend([], names.map((n) => [`fill:${partColor(n)}`, named(n)])));
}
const restName = (t) => (t.unexplained_s === null ? W.excess
  : t.unexplained_s < 0 ? W.faster_than_bytes : W.unexplained);
function timeBars(place, times) {
  const ms = (s) => s * 1000;
  const top = Math.max(...times.map((t) => ms(t.speculative_step_s + Math.max(0, -(t.unexplained_s ?? 0)))));
  const plain = "fill:var(--c0)", drafts = "fill:var(--c2)", rest = "fill:var(--c5)";
  bars(place, W.ms_of_step, times.map((t) => ({ title: `${pathOf(t)} × ${t.arm}`, end: ms(t.speculative_step_s),
    parts: [{ name: W.plain_step, value: ms(t.plain_step_s), style: plain },
      ...(t.explained_s === null ? [] : [{ name: W.draft_bytes, value: ms(t.explained_s), style: drafts }]),
      { name: restName(t), style: rest,
        value: ms(t.unexplained_s ?? t.excess_s) }] })), top, (v) => `${number(v)} ms`);
  const told = times.some((t) => t.explained_s !== null);
  place.append(legend([], [[plain, W.plain_step], ...(told ? [[drafts, W.draft_bytes]] : []),
    ...[...new Set(times.map(restName))].map((name) => [rest, name])]));
  place.append(table([W.scenario, W.arm, W.plain_step, W.draft_bytes, W.unexplained, W.measured_step],
    times.map((t) => [pathOf(t), t.arm, ...[t.plain_step_s, t.explained_s, t.unexplained_s,
      t.speculative_step_s].map((s) => (s === null ? "–" : `${number(ms(s))} ms`))])));
}
function segmentPanel(panel, title, rates) {
  const height = rates.length * 25 + 24;
  const { node, width } = canvas(panel, height, title);
  const left = Math.min(width * 0.42, Math.max(...rates.map((r) => textWidth(named(r.segment)))) + 16);
  const top = Math.max(...rates.map((r) => r.rate.high ?? r.rate.point), 0.2);
  const x = scale([0, Math.min(1, top * 1.05)], [left, width - 48]);
  const values = ticks(0, Math.min(1, top * 1.05), width / 110);
  for (const v of values)
    node.append(svg("line", { class: "grid", x1: x(v), x2: x(v), y1: 0, y2: height - 22 }));
  xAxis(node, x, values, height - 22, percent);
  [...rates].sort((a, b) => order(a, b)).forEach((r, i) => {
    const y = i * 25 + 12, d = r.difference;
    const clear = d && d.low !== null && (d.low > 0 || d.high < 0);
    node.append(svg("text", { x: 0, y: y + 4, class: clear ? "segment-bold" : "" },
      fitted(named(r.segment), left - 10)));
    if (r.rate.low !== null) whisker(node, x(r.rate.low), y, x(r.rate.high), y, r.arm);
    node.append(withTip(point(r.arm, x(r.rate.point), y, { r: 5 }),
      `${named(r.segment)}: ${interval(r.rate, percent)}\n${r.num_steps} ${W.steps}`
      + (d ? `\n${W.difference}: ${interval(d, (v) => (v * 100).toFixed(0))} ${W.points}` : "")));
    node.append(svg("text", { class: "soft", x: width, y: y + 4, "text-anchor": "end" }, percent(r.rate.point)));
  });
}
function order(a, b) {
  const numeric = (r) => (r.segment.match(/\d+/) ? Number(r.segment.match(/\d+/)[0]) : null);
  return numeric(a) !== null && numeric(b) !== null ? numeric(a) - numeric(b) : b.rate.point - a.rate.point;
}
