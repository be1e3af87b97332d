// The denoising movie: the same prompt by two models side by side, token by token.

const FRAME = 120; // milliseconds per step
const LONGEST = 12000; // longest movie, in milliseconds
let timer = null;

const ABOUT_MOVIE = "The same held-out prompt before and after tuning. Point at a token, or focus it and use "
  + "the arrow keys, for its confidence and alternatives.";

function movieSection(run) {
  if (!run.movies.length) return null;
  const chosen = { prompt: mostGained(run.movies), right: -1, step: null, ...state.movie };
  state.movie = chosen;
  chosen.prompt = Math.min(chosen.prompt, run.movies.length - 1);
  const movie = run.movies[chosen.prompt];
  const last = movie.replays.length - 1;
  const place = chosen.right < 0 || chosen.right > last ? last : chosen.right;
  const replays = place === 0 ? [movie.replays[0]] : [movie.replays[0], movie.replays[place]];
  const steps = Math.max(...replays.flatMap((replay) => replay.steps)) + 1;
  const reels = replays.map((replay) => reel(run, replay, steps));
  const again = (change) => {
    pause();
    Object.assign(chosen, { step: null }, change);
    redraw("movie", movieSection(run));
  };
  const prompts = run.movies.map((one, index) => [index, `${index + 1}: ${visible(one.prompt).slice(-60)}`]);
  const moments = movie.replays.map((replay, index) => [index, moment(run, replay)]);
  return section("movie", "Denoising movie", ABOUT_MOVIE,
    el("div", { class: "controls" },
      choice("Prompt", "movie-prompt", prompts, chosen.prompt, (value) => again({ prompt: Number(value), right: -1 })),
      moments.length > 2
        && choice("Beside the base", "movie-right", moments.slice(1), place, (value) => again({ right: Number(value) }))),
    movie.prompt.length > 60 && el("details", {}, el("summary", {}, "The whole prompt"), textBox(movie.prompt)),
    player(reels, steps, chosen),
    el("p", { class: "note" }, "revealed early",
      el("span", { class: "ramp", role: "img", "aria-label": "from blue to orange" }),
      "revealed late. A dotted line marks a confidence below 50 %."),
    el("div", { class: "reels" }, reels.map((one) => one.node)), mazeLegend(run.scene));
}

function pause() {
  clearInterval(timer);
  timer = null;
  const play = document.getElementById("play");
  if (play) play.textContent = "Play";
}

// Controls: play, step and scrub. A finished movie stays at its end when a live page is redrawn.
function player(reels, steps, chosen) {
  const slider = el("input", { type: "range", id: "scrub", min: 0, max: steps, "aria-label": "Decoding step" });
  const count = el("output", { id: "movie-step", class: "num" });
  let now = steps;
  const show = (step) => {
    now = Math.max(0, Math.min(steps, step));
    chosen.step = now === steps ? null : now;
    slider.value = now;
    slider.setAttribute("aria-valuetext", `step ${now} of ${steps}`);
    count.textContent = `step ${now} of ${steps}`;
    reels.forEach((one) => one.show(now));
  };
  const play = () => {
    if (timer) return pause();
    if (now >= steps) show(0);
    timer = setInterval(() => (now >= steps ? pause() : show(now + 1)), Math.min(FRAME, LONGEST / steps));
    document.getElementById("play").textContent = "Pause";
  };
  const to = (step) => { pause(); show(step()); };
  slider.addEventListener("input", () => to(() => Number(slider.value)));
  const button = (id, label, text, act) => el("button", { type: "button", id, "aria-label": label, onclick: act }, text);
  show(chosen.step === null ? steps : chosen.step);
  return el("div", { class: "controls" },
    el("button", { type: "button", id: "play", class: "main", onclick: play }, "Play"),
    button("back", "One step back", "◀", () => to(() => now - 1)),
    button("forward", "One step forward", "▶", () => to(() => now + 1)), slider, count);
}

// The prompt with the largest gain, which is shown first.
function mostGained(movies) {
  const gains = movies.map(({ replays }) => replays[replays.length - 1].reward - replays[0].reward);
  return gains.indexOf(Math.max(...gains));
}

// Colours from blue over lilac to orange; a direct mixture of the ends would be grey in the middle.
function shade(step, steps) {
  const place = (2 * step) / Math.max(steps - 1, 1);
  const [from, to, share] = place < 1 ? ["--early", "--mid", place] : ["--mid", "--late", place - 1];
  return `color-mix(in oklab, var(${to}) ${Math.round(100 * share)}%, var(${from}))`;
}

function reel(run, replay, steps) {
  const about = el("output", { class: "about" }, "");
  const tell = (place) => { about.textContent = aboutToken(replay, place); };
  const tokens = replay.tokens.map((text, place) => token(replay, place, text, steps, tell));
  const kind = run.scene.kind === "maze" ? "tokens cells" : "tokens";
  const name = moment(run, replay);
  const box = el("div", { class: kind, role: "group", "aria-label": `Tokens of the ${name} model` }, tokens);
  rove(box, tokens, tell);
  const picture = el("div", {});
  const show = (now) => {
    tokens.forEach((node, place) => {
      const masked = replay.steps[place] >= now;
      const last = replay.steps[place] === now - 1 && now < steps;
      const unsure = !masked && replay.confidence[place] < 0.5;
      node.className = ["token", masked && "masked", last && "new", unsure && "unsure"].filter(Boolean).join(" ");
      node.textContent = masked ? "▒" : visible(replay.tokens[place]);
      node.hidden = !masked && replay.tokens[place] === "";
    });
    picture.replaceChildren(...[framePicture(run, replay, now, steps)].filter(Boolean));
  };
  const node = el("article", { class: "card reel", "aria-label": `${name} model` },
    el("figcaption", {}, el("h3", {}, name), el("span", { class: "num" }, `reward ${reward(replay.reward)}`)),
    picture, box, about);
  return { node, show };
}

function token(replay, place, text, steps, tell) {
  return el("span", { tabindex: place ? -1 : 0, "data-place": place, style: { "--shade": shade(replay.steps[place], steps) },
    onpointerenter: () => tell(place), onfocus: () => tell(place) });
}

function aboutToken(replay, place) {
  const quoted = (text) => `“${visible(text) || "end"}”`;
  const options = (replay.alternatives[place] || []).map(([text, p]) => `${quoted(text)} ${number(p, "share")}`);
  const sure = number(replay.confidence[place], "share");
  return `${quoted(replay.tokens[place])}: revealed at step ${replay.steps[place] + 1} with ${sure} confidence. `
    + `Most likely then: ${options.join(", ")}`;
}

// One tab stop for all tokens; the arrow keys move between them.
function rove(box, tokens, tell) {
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    let place = tokens.indexOf(document.activeElement);
    if (!move || place < 0) return;
    event.preventDefault();
    do place += move; while (tokens[place] && tokens[place].hidden);
    if (!tokens[place]) return;
    tokens.forEach((node) => node.setAttribute("tabindex", -1));
    tokens[place].setAttribute("tabindex", 0);
    tokens[place].focus();
    tell(place);
  });
}

// Mazes and small Sudokus are drawn while tokens are revealed; other drawings appear with the last token.
function framePicture(run, replay, now, steps) {
  if (!replay.drawing) return null;
  if (run.scene.kind === "maze") return mazeFrame(run.scene, replay, now, steps);
  if (run.scene.kind === "sudoku" && run.scene.whole) return sudokuFrame(replay, now, steps);
  return now >= steps ? drawing(run.scene, replay) : null;
}

function mazeFrame(scene, replay, now, steps) {
  const squares = [];
  replay.tokens.forEach((text, place) => {
    const step = replay.steps[place];
    if (step >= now || !text.includes(",")) return;
    const [row, column] = text.split(",").map(Number);
    const kind = step === now - 1 && now < steps ? "cell new" : "cell";
    const box = { x: column + 0.08, y: row + 0.08, width: 0.84, height: 0.84, rx: 0.2 };
    squares.push(svg("rect", { class: kind, ...box, style: { fill: shade(step, steps) } }));
  });
  const wrong = now >= steps ? flaws(scene, replay.drawing.path.filter((cell) => cell !== null)) : [];
  return maze(scene, replay.drawing, [...squares, ...wrong]);
}

function sudokuFrame(replay, now, steps) {
  const size = replay.drawing.puzzle.length;
  const cells = replay.tokens.slice(0, size).map((text, place) => (replay.steps[place] < now ? text[0] || "0" : " "));
  const grid = cells.join("").padEnd(size);
  const tones = [...grid].map((digit, place) => (digit === " " ? null : shade(replay.steps[place], steps)));
  return sudoku({ ...replay.drawing, grid, wrong: now >= steps ? replay.drawing.wrong : [] }, tones);
}
