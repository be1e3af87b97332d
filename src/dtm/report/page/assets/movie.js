// The denoising movie: the same prompt by two models side by side, token by token.

const FRAME = 120; // milliseconds of a step
const LONGEST = 12000; // milliseconds of a movie
let timer = null;

function movieSection(run) {
  if (!run.movies.length) return null;
  const chosen = Object.assign({ prompt: mostGained(run.movies), right: -1, step: null }, state.movie);
  state.movie = chosen;
  chosen.prompt = Math.min(chosen.prompt, run.movies.length - 1);
  const movie = run.movies[chosen.prompt];
  const place = chosen.right < 0 || chosen.right >= movie.replays.length ? movie.replays.length - 1 : chosen.right;
  const replays = place === 0 ? [movie.replays[0]] : [movie.replays[0], movie.replays[place]];
  const steps = Math.max(...replays.flatMap((replay) => replay.steps)) + 1;
  const reels = replays.map((replay) => reel(run, replay, steps));
  const slider = el("input", { type: "range", id: "scrub", min: 0, max: steps, "aria-label": "Decoding step", oninput: () => { stop(); show(Number(slider.value)); } });
  const count = el("output", { id: "movie-step", class: "num" });
  const play = el("button", { id: "play", class: "main", type: "button", onclick: () => (timer ? stop() : start()) }, "Play");
  const show = (step) => {
    chosen.step = step;
    slider.value = step;
    slider.setAttribute("aria-valuetext", `step ${step} of ${steps}`);
    count.textContent = `step ${step} of ${steps}`;
    reels.forEach((one) => one.show(step));
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };
  const start = () => {
    if (chosen.step >= steps) show(0);
    play.textContent = "Pause";
    timer = setInterval(() => (chosen.step >= steps ? stop() : show(chosen.step + 1)), Math.min(FRAME, LONGEST / steps));
  };
  const move = (by) => () => { stop(); show(Math.max(0, Math.min(steps, chosen.step + by))); };
  stop();
  show(chosen.step === null ? steps : Math.min(chosen.step, steps));
  const again = (change) => { stop(); Object.assign(chosen, { step: null }, change); redraw("movie", movieSection(run)); };
  const prompts = run.movies.map((one, index) => [index, `${index + 1}: ${visible(one.prompt).slice(-60)}`]);
  const moments = movie.replays.map((replay, index) => [index, moment(run, replay)]);
  return section("movie", "Denoising movie", "The same held-out prompt before and after tuning. Point at a token, or focus it and use the arrow keys, for its confidence and alternatives.",
    el("div", { class: "controls" },
      choice("Prompt", "movie-prompt", prompts, chosen.prompt, (value) => again({ prompt: Number(value), right: -1 })),
      moments.length > 2 && choice("Beside the base", "movie-right", moments.slice(1), place, (value) => again({ right: Number(value) }))),
    movie.prompt.length > 60 && el("details", {}, el("summary", {}, "The whole prompt"), textBox(movie.prompt)),
    el("div", { class: "controls" }, play,
      el("button", { type: "button", id: "back", "aria-label": "One step back", onclick: move(-1) }, "◀"),
      el("button", { type: "button", id: "forward", "aria-label": "One step forward", onclick: move(1) }, "▶"), slider, count),
    el("p", { class: "note" }, "revealed early", el("span", { class: "ramp", role: "img", "aria-label": "from blue to orange" }), "revealed late. A dotted line marks a confidence below 50 %."),
    el("div", { class: "reels" }, reels.map((one) => one.node)));
}

// The prompt that gained most: the one worth seeing first.
function mostGained(movies) {
  const gains = movies.map(({ replays }) => replays[replays.length - 1].reward - replays[0].reward);
  return gains.indexOf(Math.max(...gains));
}

// From blue over lilac to orange: a straight mixture would be grey in the middle.
function shade(step, steps) {
  const place = (2 * step) / Math.max(steps - 1, 1);
  const [from, to, share] = place < 1 ? ["--early", "--mid", place] : ["--mid", "--late", place - 1];
  return `color-mix(in oklab, var(${to}) ${Math.round(100 * share)}%, var(${from}))`;
}

function reel(run, replay, steps) {
  const about = el("output", { class: "about" }, "");
  const tell = (place) => { about.textContent = aboutToken(replay, place); };
  const tokens = replay.tokens.map((text, place) => token(replay, place, text, steps, tell));
  const box = el("div", { class: run.scene.kind === "maze" ? "tokens cells" : "tokens", role: "group", "aria-label": `Tokens of the ${moment(run, replay)} model` }, tokens);
  rove(box, tokens, tell);
  const picture = el("div", {});
  const show = (now) => {
    tokens.forEach((node, place) => {
      const masked = replay.steps[place] >= now;
      const last = replay.steps[place] === now - 1 && now < steps;
      node.className = `token${masked ? " masked" : ""}${last ? " new" : ""}${!masked && replay.confidence[place] < 0.5 ? " unsure" : ""}`;
      node.textContent = masked ? "▒" : visible(replay.tokens[place]);
      node.hidden = !masked && replay.tokens[place] === "";
    });
    picture.replaceChildren(...[framePicture(run, replay, now, steps)].filter(Boolean));
  };
  const node = el("article", { class: "card reel", "aria-label": `${moment(run, replay)} model` },
    el("figcaption", {}, el("h3", {}, moment(run, replay)), el("span", { class: "num" }, `reward ${reward(replay.reward)}`)), picture, box, about);
  return { node, show };
}

function token(replay, place, text, steps, tell) {
  return el("span", { tabindex: place ? -1 : 0, "data-place": place, style: { "--shade": shade(replay.steps[place], steps) },
    onpointerenter: () => tell(place), onfocus: () => tell(place) });
}

function aboutToken(replay, place) {
  const options = (replay.alternatives[place] || []).map(([text, chance]) => `“${visible(text) || "end"}” ${number(chance, "share")}`);
  const name = visible(replay.tokens[place]) || "end";
  return `“${name}”: revealed at step ${replay.steps[place] + 1} with ${number(replay.confidence[place], "share")} confidence. Most likely then: ${options.join(", ")}`;
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

// Mazes and small Sudokus are drawn as they are uncovered; other drawings appear with the last token.
function framePicture(run, replay, now, steps) {
  if (!replay.drawing) return null;
  if (run.scene.kind === "maze") {
    const cells = replay.tokens.map((text, place) => ({ text, step: replay.steps[place] })).filter((one) => one.step < now && one.text.includes(","));
    const squares = cells.map((one) => {
      const [row, column] = one.text.split(",").map(Number);
      const last = one.step === now - 1 && now < steps;
      return svg("rect", { class: last ? "cell new" : "cell", x: column + 0.08, y: row + 0.08, width: 0.84, height: 0.84, rx: 0.2, style: { fill: shade(one.step, steps) } });
    });
    const wrong = now >= steps ? flaws(run.scene, replay.drawing.path.filter((cell) => cell !== null)) : [];
    return maze(run.scene, replay.drawing, [...squares, ...wrong]);
  }
  if (run.scene.kind === "sudoku" && run.scene.whole) {
    const size = replay.drawing.puzzle.length;
    const grid = replay.tokens.slice(0, size).map((text, place) => (replay.steps[place] < now ? text[0] || "0" : " ")).join("").padEnd(size);
    const tones = [...grid].map((digit, place) => (digit === " " ? null : { kind: "", fill: shade(replay.steps[place], steps) }));
    return sudoku({ ...replay.drawing, grid, wrong: now >= steps ? replay.drawing.wrong : [] }, tones);
  }
  return now >= steps ? drawing(run.scene, replay) : null;
}
