// The conversations behind the numbers. Text of users and models is only ever set as text.
const MARKS = ["first", "accepted", "bonus", "corrected", "plain", "step", "unknown"];

function listRequests() {
  const place = document.getElementById("requests");
  if (!place || !R.requests) return;
  const open = new Set([...place.querySelectorAll("details[open]")].map((d) => d.dataset.path));
  place.replaceChildren();
  const rows = R.requests.rows.filter((r) => !r.warmup && shown(r, r.load));
  for (const [path, mine] of groups(rows)) {
    const details = html("details", { "data-path": path }, html("summary", {}, html("b", {}, path), " ",
      html("span", { class: "note" }, say("requests", { n: mine.length }))));
    details.addEventListener("toggle", () => {
      if (details.open && details.childElementCount === 1) details.append(...conversationsOf(mine));
    });
    if (open.has(path)) details.open = true;
    place.append(details);
  }
  if (!rows.length) place.append(html("p", { class: "note" }, W.no_data));
}

function conversationsOf(rows) {
  return groups(rows, (r) => r.conversation_id).map(([id, mine]) => {
    const prompts = ((R.requests.prompts || {})[mine[0].scenario] || {})[id] || [];
    const details = html("details", { "data-path": `${pathOf(mine[0])}/${id}` },
      html("summary", {}, id, " ", html("span", { class: "note" }, (prompts[0] || "").slice(0, 60))));
    details.addEventListener("toggle", () => {
      if (details.open && details.childElementCount === 1) details.append(requestTable(mine, prompts));
    });
    return details;
  });
}

function requestTable(rows, prompts) {
  const place = html("div", {});
  const heads = [W.arm, W.turn_number, W.repeat_number, W.speed, W.ttft, W.accepted, W.tokens, W.finish, ""];
  const body = html("tbody", {});
  for (const r of rows) {
    const share = r.num_draft_tokens ? percent((r.num_accepted_tokens || 0) / r.num_draft_tokens) : "–";
    const values = [r.arm, r.turn + 1, r.repeat + 1, r.decode_tokens_per_s ? number(r.decode_tokens_per_s) : "–",
      r.ttft_s === undefined ? "–" : number(r.ttft_s * 1000), share, r.num_tokens,
      r.error ? W.failed : (r.finish_reason || "–") + (r.looped ? ` · ${W.looped}` : "")];
    const row = html("tr", {}, ...values.map((v) => html("td", {}, String(v))));
    row.firstChild.prepend(html("i", { class: "swatch", style: `background:${color(r.arm)}` }));
    row.append(html("td", {}, html("button", { type: "button", class: "read", "aria-label": `${W.answer} ${r.arm}`,
      onclick: () => {
        body.querySelectorAll(".chosen").forEach((other) => other.classList.remove("chosen"));
        row.classList.add("chosen");
        place.querySelector(".shown").replaceChildren(...answer(r, prompts[r.turn]));
      } }, W.answer)));
    body.append(row);
  }
  place.append(html("div", { class: "rows" }, html("table", {}, html("thead", {},
    html("tr", {}, ...heads.map((h) => html("th", {}, h)))), body)), html("div", { class: "shown", "aria-live": "polite" }));
  return place;
}

function answer(r, prompt) {
  const parts = [];
  if (prompt) parts.push(html("div", { class: "prompt" }, prompt));
  if (r.error) parts.push(html("p", { class: "note" }, r.error));
  if (r.pieces) {
    parts.push(markLegend(r.pieces));
    parts.push(html("div", { class: "answer" }, ...r.pieces.map(piece)));
  } else parts.push(html("div", { class: "answer" }, r.text === undefined ? W.no_answer : r.text));
  return parts;
}

let lastStep = null;
function piece([text, mark, step, ms, , position, accepted, drafted, kind], index) {
  const depth = mark === "accepted" ? position : mark === "step" ? accepted : 0;
  const starts = index === 0 || step !== lastStep;
  lastStep = step;
  const node = html("span", { class: `piece ${mark} kind-${kind}${starts ? " start" : ""}${mark === "step" && !accepted ? " a0" : ""}`,
    style: `--depth:${Math.min(depth || 0, 5)}` }, text);
  const lines = [say("hover_step", { step }) + " · " + say("hover_time", { ms })];
  lines.push(mark === "step" ? say("mark_step", { accepted }) : W[`mark_${mark}`]);
  if (position) lines.push(say("hover_position", { position }));
  if (drafted) lines.push(say("hover_draft", { accepted, drafted }));
  else if (accepted !== null && mark === "step") lines.push(say("hover_accepted", { accepted }));
  node.dataset.tip = lines.join("\n");
  return node;
}
function markLegend(pieces) {
  const seen = new Set(pieces.map((p) => p[1]));
  const items = MARKS.filter((mark) => seen.has(mark)).map((mark) => html("span", {},
    html("span", { class: `piece ${mark}`, style: "--depth:2" }, " abc "),
    mark === "step" ? say("mark_step", { accepted: "n" }) : W[`mark_${mark}`]));
  return html("div", { class: "legend", "aria-label": W.legend }, ...items);
}
document.addEventListener("pointerover", (event) => {
  const node = event.target.closest && event.target.closest(".piece[data-tip]");
  if (node) showTip(node.dataset.tip, event.clientX, event.clientY);
});
document.addEventListener("pointerout", (event) => {
  if (event.target.closest && event.target.closest(".piece[data-tip]")) hideTip();
});

function openConversations(scenario, arm, load) {
  for (const name of ["scenario", "arm", "load"]) {
    const wanted = { scenario, arm, load }[name];
    const all = [...document.querySelectorAll(`.chip[data-filter="${name}"]`)];
    if (name === "arm") continue;
    if (all.length && !CHOICE[name].has(wanted)) CHOICE[name].add(wanted);
  }
  CHOICE.arm.add(arm);
  update();
  const path = scenario + (manyLoads ? ` · ${load}` : "");
  const details = [...document.querySelectorAll("#requests > details")].find((d) => d.dataset.path === path);
  if (!details) return;
  details.open = true;
  details.scrollIntoView({ block: "start" });
  details.querySelector("summary").focus();
}
