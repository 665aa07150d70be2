// Entropy and surprisal of tokens against whether their draft was accepted.
STATE.uncertainty = "entropy";

CHARTS.why = (place, controls) => {
  const own = R.why ? R.why.scenarios.filter((s) => CHOICE.scenario.has(s.scenario) && CHOICE.arm.has(s.arm)) : [];
  if (!own.length) return false;
  controls.append(...["entropy", "surprisal"].map((name) => html("button", { type: "button", class: "choice",
    "aria-pressed": String(name === STATE.uncertainty),
    onclick: () => { STATE.uncertainty = name; redraw(["why"]); controls.querySelector("[aria-pressed=true]").focus(); } },
    W[name])));
  const binsOf = (s) => s[`by_${STATE.uncertainty}`];
  const edges = [...new Set(R.why.scenarios.flatMap((s) => [...s.by_entropy, ...s.by_surprisal].map((b) => b.low)))]
    .sort((a, b) => a - b);
  const title = say("uncertainty_axis", { name: W[STATE.uncertainty] });
  for (const [path, mine] of lay(place, groups(own, (s) => s.scenario))) {
    const { node, x, y } = frame(mine.panel, `${path}: ${title}`, 230, [0, edges.length], [0, 1], {
      xValues: () => edges.map((_, i) => i), xFormat: (i) => tickText(edges[i]), yFormat: percent, xTitle: title,
      yTitle: W.accepted });
    mine.forEach((s, nth) => {
      const places = binsOf(s).map((bin) => [x(edges.indexOf(bin.low) + 0.5) + (nth - (mine.length - 1) / 2) * 7, bin]);
      line(node, places.map(([at, bin]) => [at, y(bin.rate.point)]), s.arm, 0.5);
      for (const [at, bin] of places) {
        if (bin.rate.low !== null) whisker(node, at, y(bin.rate.low), at, y(bin.rate.high), s.arm);
        node.append(withTip(point(s.arm, at, y(bin.rate.point)),
          `${s.arm}, ${binText(bin)} nat\n${W.accepted} ${interval(bin.rate, percent)}\n${bin.num_tokens} ${W.tokens}`));
      }
    });
  }
  place.append(legend(ARMS.filter((arm) => own.some((s) => s.arm === arm))));
  place.append(table([W.scenario, W.arm, title, W.accepted, W.tokens], own.flatMap((s) => binsOf(s).map((bin) =>
    [s.scenario, s.arm, binText(bin), interval(bin.rate, percent), bin.num_tokens]))));
  gapPanel(place, R.why.gaps.filter((g) => CHOICE.arm.has(g.arm) && CHOICE.scenario.has(g.higher) && CHOICE.scenario.has(g.lower)));
  return true;
};
const binText = (bin) => (bin.high === null ? `≥ ${bin.low}` : `${bin.low}–${bin.high}`);

function gapPanel(place, gaps) { // a gap in acceptance, and the part of it that entropy explains
  if (!gaps.length) return;
  const panel = place.appendChild(html("div", { class: "panel" }, html("h3", {}, W.gaps_title)));
  const height = gaps.length * 62 + 42;
  const { node, width } = canvas(panel, height, W.gaps_title);
  const points = (v) => (v * 100).toFixed(0);
  const ends = gaps.flatMap((g) => [g.gap, g.explained]).flatMap((e) => [e.low ?? e.point, e.high ?? e.point]);
  const left = Math.max(textWidth(W.gap), textWidth(W.gap_explained)) + 28;
  const low = Math.min(0, ...ends), high = Math.max(0.05, ...ends), x = scale([low, high], [left, width - 48]);
  const values = ticks(low, high, (width - left) / 90);
  for (const v of values)
    node.append(svg("line", { class: v === 0 ? "axis" : "grid", x1: x(v), x2: x(v), y1: 0, y2: height - 42 }));
  xAxis(node, x, values, height - 42, points, W.points, width - 48);
  gaps.forEach((g, i) => {
    const title = `${g.arm}: ${g.higher} – ${g.lower}`;
    node.append(svg("text", { x: 0, y: i * 62 + 14, style: "font-weight:600" }, fitted(title, width - 4, 600)));
    [[W.gap, g.gap, false], [W.gap_explained, g.explained, true]].forEach(([name, e, hollow], row) => {
      const y = i * 62 + 28 + row * 20;
      node.append(svg("text", { class: "soft", x: 12, y: y + 4 }, name));
      if (e.low !== null) whisker(node, x(e.low), y, x(e.high), y, g.arm);
      node.append(withTip(point(g.arm, x(e.point), y, { r: 5, hollow }),
        `${title}\n${name}: ${interval(e, points)} ${W.points}${hollow && g.share !== null ? ` (${percent(g.share)})` : ""}`));
      node.append(svg("text", { class: "soft", x: width, y: y + 4, "text-anchor": "end" }, points(e.point)));
    });
  });
}
