// Sections: settings of the run, the verdict, warnings, phases, and changed answers.

function header(data, run) {
  const kind = { learnt: "learnt", unfinished: "unfinished" }[run.verdict.kind] || "bad";
  return titled(data, el("p", { class: `verdict ${kind}`, id: "verdict" }, visible(run.verdict.text)));
}

function titled(data, verdict) {
  const live = data.live && el("span", { class: "live", id: "live", role: "status" }, "live");
  return el("header", {}, live, el("h1", {}, visible(data.title)), verdict);
}

const formatOf = (run, name) => (run.charts.find((chart) => chart.id === name) || {}).format;
const spaced = (name) => visible(name.replaceAll("_", " "));

function tiles(run) {
  if (!run.measures.length) return null;
  return el("div", { class: "tiles" }, run.measures.map((one) => {
    const text = (value) => number(value, formatOf(run, one.name));
    const best = one.best === undefined ? "" : ` · best ${text(one.best)}`;
    return el("div", { class: "card tile" },
      el("span", {}, spaced(one.name)), el("b", {}, text(one.tuned)), el("span", {}, `base ${text(one.base)}${best}`));
  }));
}

function askedSection(run) {
  const facts = run.facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, visible(value))]);
  return section("asked", "Settings", null, el("div", { class: "card" }, el("dl", { class: "facts" }, facts),
    el("details", {}, el("summary", {}, "Every setting (config.yaml)"), el("pre", { tabindex: 0 }, visible(run.config)))));
}

function warningsSection(run) {
  if (!run.warnings.length) return null;
  return section("warnings", "Warnings", null, el("ul", { class: "warnings" }, run.warnings.map((one) =>
    el("li", {}, visible(one.what), one.fix && el("div", { class: "fix" }, `To fix it: ${visible(one.fix)}`)))));
}

function chartsSection(runs) {
  const specs = new Map(runs.flatMap((run) => run.charts.map((chart) => [chart.id, chart])));
  const groups = [...new Set(runs.map((run) => run.group))];
  const figures = [...specs.values()].map((spec) => chart(spec, runs, groups)).filter(Boolean);
  if (!figures.length) return null;
  const axes = Object.entries(AXES).map(([name, [label]]) => [name, label]);
  const change = (value) => { state.axis = value; redraw("curves", chartsSection(runs)); };
  const lines = runs.length > 1
    ? "One curve per run; runs of one setting share a colour, and the line above a chart has the mean of each setting."
    : "Bands and whiskers: the 95 % interval of the mean reward over prompts, and the standard error of the absorbed share.";
  const all = runs.every((run) => run.charts.some((chart) => chart.id === "kl_to_base"));
  const note = all ? lines : `${lines} The KL to the base is measured with adapters only, or with methods that read the base.`;
  return section("curves", "Curves", note,
    el("div", { class: "controls" }, choice("Against", "axis", axes, state.axis, change)),
    runs.length > 1 && legend(groups), el("div", { class: "grid" }, figures));
}

function table(heads, rows) {
  return el("div", { class: "card scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head, place) => el("th", { scope: "col", class: place && "num" }, visible(head))))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, place) => el("td", { class: place && "num" }, cell)))))));
}

function phasesSection(run) {
  if (!run.phases.some((phase) => phase.absorbed !== null)) return null;
  const rows = run.phases.map((phase) => [
    String(phase.phase + 1), `${number(phase.tilt)} → ${number(phase.tilt + phase.h)}`, number(phase.steps),
    number(phase.ess, "share"), phase.reading, number(phase.reward), visible(phase.reason)]);
  const heads = ["Phase", "Tilt", "Steps", "ESS", "Absorbed", "Reward of its rollouts", "Ended"];
  return section("phases", "Phases", "Each phase tilts by h and trains until the student has absorbed it.", table(heads, rows));
}

function evaluationsSection(run) {
  const found = run.tables.evaluation;
  if (!found) return null;
  const names = run.measures.map((one) => one.name);
  const rows = found.step.map((step, row) =>
    [moment(run, { step }), ...names.map((name) => number((found[name] || [])[row], formatOf(run, name)))]);
  return section("numbers", "Numbers", "Every held-out evaluation.", table(["Model", ...names.map(spaced)], rows));
}

function movedSection(run) {
  const found = run.moved;
  if (!found || !(found.gained.length || found.lost.length)) return null;
  const list = (title, rows) => el("div", { class: "card" },
    el("h3", {}, title), el("ul", {}, rows.map((row) => movedRow(run, row))));
  const note = `${number(found.share, "share")} of the answers to a prompt changed between the first and the latest `
    + "evaluation (total variation of the samples, chance included).";
  return section("moved", "Changed answers", note,
    el("div", { class: "moves" }, list("Gained", found.gained), list("Lost", found.lost)), mazeLegend(run.scene));
}

function movedRow(run, row) {
  const asked = el("div", { class: "note" }, visible(row.prompt.slice(-80)));
  return el("li", {},
    el("div", { class: "sample" }, drawing(run.scene, row), el("div", {}, asked, textBox(row.completion))),
    el("div", { class: "num" }, `${number(row.before, "share")} → ${number(row.after, "share")}`,
      el("div", { class: "note" }, `reward ${reward(row.reward)}`)));
}

function compareSection(data) {
  const names = [...new Set(data.runs.flatMap((run) => run.measures.map((one) => one.name)))];
  const value = (run, name) => (run.measures.find((one) => one.name === name) || {}).tuned;
  const rows = data.runs.map((run) => [visible(run.name), visible(run.group),
    ...names.map((name) => number(value(run, name), formatOf(run, name))), run.finished ? "finished" : "not finished"]);
  return section("runs", "Runs", "Held-out measures of the latest evaluation of each run.",
    table(["Run", "Setting", ...names.map(spaced), "State"], rows));
}
