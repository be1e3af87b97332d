// Build the page, and update a live page.

let data = read();
state.axis = data.axis;
const POLL = 2000; // milliseconds

function redraw(id, node) {
  const old = document.getElementById(id);
  const focus = document.activeElement && document.activeElement.id;
  if (old && node) old.replaceWith(node);
  if (focus && document.getElementById(focus)) document.getElementById(focus).focus();
}

function draw() {
  state.run = Math.min(state.run, data.runs.length - 1);
  const run = data.runs[state.run];
  const many = data.runs.length > 1;
  const warned = warningsSection(run);
  const own = [movieSection(run), samplesSection(run), movedSection(run), histogramSection(run), phasesSection(run),
    evaluationsSection(run), askedSection(run)];
  const curves = chartsSection(data.runs);
  const parts = (many ? [curves, chosenSection(run), warned, ...own] : [warned, curves, ...own]).filter(Boolean);
  const top = many ? [comparedHeader(), compareSection(data)] : [header(data, run), tiles(run)];
  const links = parts.map((part) => el("a", { href: `#${part.id}` }, part.querySelector("h2").textContent));
  const focus = document.activeElement && document.activeElement.id;
  const page = [...top, el("nav", { "aria-label": "Sections" }, links), ...parts].filter(Boolean);
  document.getElementById("main").replaceChildren(...page);
  if (focus && focus !== "main" && document.getElementById(focus)) document.getElementById(focus).focus();
}

// On a page of several runs: choose the run whose samples and movie are shown below.
function chosenSection(run) {
  const runs = data.runs.map((one, index) => [index, visible(one.name)]);
  const change = (value) => {
    Object.assign(state, { run: Number(value), movie: {} });
    draw();
  };
  return section("details", "One run", null,
    el("div", { class: "controls" }, choice("Run", "run", runs, state.run, change)),
    el("p", { id: "verdict" }, visible(run.verdict.text)));
}

function comparedHeader() {
  const best = [...data.runs].sort((a, b) => rewardOf(b) - rewardOf(a))[0];
  const text = `${data.runs.length} runs; the highest held-out reward is ${number(rewardOf(best))}, of ${best.name}.`;
  return titled(data, el("p", { class: "verdict", id: "headline" }, visible(text)));
}

const rewardOf = (run) => ((run.measures.find((one) => one.name === "reward") || {}).tuned ?? -Infinity);

async function poll(tag) {
  let next = tag;
  if (timer) return setTimeout(poll, POLL, tag); // do not redraw while a movie plays
  try {
    const answer = await fetch("data.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status === 200) {
      data = await answer.json();
      next = answer.headers.get("ETag");
      draw();
    }
    tellLive("live");
  } catch {
    tellLive("the server has stopped; the page shows its last state");
  }
  setTimeout(poll, POLL, next);
}

function tellLive(text) {
  const node = document.getElementById("live");
  if (node && node.textContent !== text) node.textContent = text;
}

draw();
document.documentElement.dataset.ready = "yes";
if (data.live) setTimeout(poll, POLL, data.tag);
