// Filters, redrawing, copy buttons.
function redraw(names = Object.keys(CHARTS)) {
  for (const name of names) {
    const place = document.getElementById(`chart-${name}`);
    const controls = document.getElementById(`controls-${name}`);
    place.replaceChildren();
    controls.replaceChildren();
    const section = document.getElementById(`section-${name}`);
    const drawn = CHARTS[name](place, controls);
    if (!drawn && section.dataset.drawn === undefined) section.hidden = true; // not in this report
    else if (!drawn) place.append(html("p", { class: "note" }, W.no_data));
    else section.dataset.drawn = "yes";
  }
  hideTip();
}

function update() {
  for (const chip of document.querySelectorAll(".chip"))
    chip.setAttribute("aria-pressed", String(CHOICE[chip.dataset.filter].has(chip.dataset.value)));
  for (const node of document.querySelectorAll("tr[data-scenario], .path[data-scenario], .line[data-arm]")) {
    const { scenario, arm, load } = node.dataset;
    node.hidden = (scenario !== undefined && !CHOICE.scenario.has(scenario))
      || (arm !== undefined && !CHOICE.arm.has(arm)) || (load !== undefined && !CHOICE.load.has(load));
  }
  redraw();
  listRequests();
}

function toggle(chip) { // all -> one -> more; the last one taken away shows all again
  const chosen = CHOICE[chip.dataset.filter];
  const all = [...document.querySelectorAll(`.chip[data-filter="${chip.dataset.filter}"]`)]
    .map((other) => other.dataset.value);
  if (chosen.size === all.length) {
    chosen.clear();
    chosen.add(chip.dataset.value);
  } else if (chosen.has(chip.dataset.value)) chosen.delete(chip.dataset.value);
  else chosen.add(chip.dataset.value);
  if (!chosen.size) all.forEach((value) => chosen.add(value));
  update();
}

for (const cell of R.cells) {
  CHOICE.scenario.add(cell.scenario);
  CHOICE.arm.add(cell.arm);
  CHOICE.load.add(loadLabel(cell.load));
}
for (const swatch of document.querySelectorAll("[data-arm-color]"))
  swatch.style.background = color(swatch.dataset.armColor);
for (const chip of document.querySelectorAll(".chip"))
  chip.addEventListener("click", () => toggle(chip));
for (const button of document.querySelectorAll("button.open"))
  button.addEventListener("click", () =>
    openConversations(button.dataset.scenario, button.dataset.arm, button.dataset.load));
for (const button of document.querySelectorAll("button.copy"))
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("code").textContent;
    try { await navigator.clipboard.writeText(text); } catch {
      const range = document.createRange();
      range.selectNodeContents(button.parentElement.querySelector("code"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
    }
    button.textContent = W.copied;
  });
update();
let lastWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === lastWidth) return;
  lastWidth = innerWidth;
  redraw();
});
addEventListener("beforeprint", () => redraw());
