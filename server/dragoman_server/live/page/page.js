// Asks the server for what is new, and shows it.

import { CARDS, TILES, totals } from "./cards.js";
import { Chart } from "./chart.js";
import { clock, count, moment, NONE, since, tick } from "./format.js";

const PATIENCE_SECONDS = 5;
const LEAST_SECONDS = 60; // that the charts show
const LATE = 5; // points that may be due

const at = (id) => document.getElementById(id);

/** Makes an element with some of its properties. */
function make(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

let told = null; // the latest answer, with all points so far
let heard = 0; // when it came, by this machine's clock
let pointed = null; // which point the pointer is at
let chosen = "";
let asking = 0;

const tiles = new Map(TILES.map((tile) => [tile.key, makeTile(tile)]));
const cards = new Map(CARDS.map((card) => [card.key, makeCard(card)]));
const table = make("div", { className: "totals" });
const sinceStart = make("p", { className: "text" });
at("cards").append(
  make("article", { className: "wide" }, make("h2", { textContent: "Since the start" }), sinceStart, table),
);
at("choice").addEventListener("change", () => {
  chosen = at("model").value;
  told = null;
  ask();
});
document.addEventListener("visibilitychange", () => document.hidden || ask());
ask();

/** Asks once, shows what comes, and sees to it that it is asked again. Of several that overlap, the last one counts. */
async function ask() {
  const mine = ++asking;
  let wait = told?.every_seconds ?? 1;
  try {
    const answer = await fetch(address(), { cache: "no-store", signal: AbortSignal.timeout(1000 * PATIENCE_SECONDS) });
    if (mine !== asking) return;
    if (answer.status === 404) [chosen, told, wait] = ["", null, 0]; // the model has gone
    else if (!answer.ok) throw new Error(`the server answers with status ${answer.status}`);
    else take(await answer.json());
  } catch (problem) {
    if (mine !== asking) return;
    lost();
  }
  if (mine !== asking) return;
  if (!document.hidden) setTimeout(() => mine === asking && ask(), 1000 * wait);
}

function address() {
  const last = told?.points.at(-1);
  const asked = new URLSearchParams();
  if (chosen) asked.set("model", chosen);
  if (last) asked.set("after", last.time);
  return `live.json?${asked}`;
}

/** Puts an answer behind what is known; a server that was started anew begins a new story. */
function take(answer) {
  const from = answer.now - answer.kept_seconds;
  const before = told && told.started === answer.started ? told.points : [];
  told = { ...answer, points: [...before, ...answer.points].filter((point) => point.time > from) };
  heard = Date.now();
  show();
}

function lost() {
  const state = at("state");
  [state.textContent, state.dataset.state] = ["no answer", "lost"];
  const from = heard ? ` since ${clock(heard / 1000)}. What is below is from then.` : ".";
  notice(`The server does not answer${from}`);
  document.body.classList.toggle("stale", heard > 0);
}

function notice(text) {
  at("notice").textContent = text;
  at("notice").hidden = !text;
}

function show() {
  document.body.classList.remove("stale");
  const state = at("state");
  [state.textContent, state.dataset.state] = [told.state, told.state === "serving" ? "serving" : "not"];
  notice(warnings().join(" "));
  showModels();
  at("explained").textContent =
    `A point tells of the ${told.window_seconds} s before it, and there is one every ${told.every_seconds} s; what waits, ` +
    "runs and fills the cache is as it was at that moment. Percentiles are estimated from the histograms' buckets. " +
    "Health checks are not counted as calls.";
  showTiles();
  showCards();
  showTotals();
}

function warnings() {
  const found = [];
  const fallen = told.models.filter((model) => model.fallback).map((model) => model.name);
  if (fallen.length) found.push(`A GPU was found but does not work: ${fallen.join(", ")} runs on the CPU.`);
  const quiet = told.now - (told.points.at(-1)?.time ?? told.started);
  if (quiet > LATE * told.every_seconds) found.push(`The server has measured nothing for ${since(quiet)}: it is too busy.`);
  return found;
}

function showModels() {
  const names = told.models.map((model) => model.name);
  const select = at("model");
  if (select.dataset.names !== names.join()) {
    select.dataset.names = names.join();
    const options = ["", ...names].map((value) => make("option", { value, textContent: value || "all together" }));
    select.replaceChildren(...options);
    select.value = chosen;
  }
  at("choice").hidden = names.length < 2;
  const shown = told.models.filter((model) => !chosen || model.name === chosen);
  const [first] = shown;
  const what = shown.length === 1 ? `${first.name} · ${first.device} · ${first.precision}` : `${shown.length} models`;
  at("facts").textContent = `${shown.length ? what : "no model is loaded"} · up ${since(told.now - told.started)}`;
}

function makeTile({ key, title }) {
  const value = make("p", { className: "value", textContent: NONE });
  const text = make("p", { className: "text" });
  const whole = make("div", { className: "tile" }, make("h2", { textContent: title }), value, text);
  whole.dataset.tile = key;
  at("tiles").append(whole);
  return { whole, value, text };
}

function showTiles() {
  const latest = told.points.at(-1);
  for (const { key, value, text, alarm } of TILES) {
    const tile = tiles.get(key);
    tile.value.textContent = latest ? value(latest, told) : NONE;
    tile.text.textContent = latest ? text(latest) : "nothing measured yet";
    tile.whole.classList.toggle("alarm", Boolean(latest && alarm?.(latest)));
  }
}

function makeCard({ key, title, text }) {
  const home = make("div", { className: "chart" });
  const legend = make("ul", { className: "legend" });
  const note = make("span", { className: "note" });
  const told = make("p", { className: "text", textContent: text });
  const whole = make("article", {}, make("header", {}, make("h2", { textContent: title }), note), told, home, legend);
  whole.dataset.card = key;
  at("cards").append(whole);
  return { home, legend, note, text: told, chart: null };
}

/** Where the pointer is, all charts show the values of that time. */
function point(index) {
  if (index === pointed) return;
  pointed = index;
  for (const { chart } of cards.values()) chart?.point(index);
  showLegends();
}

function showCards() {
  const { points } = told;
  if (pointed !== null && pointed >= points.length) pointed = null;
  const { from, to, marks } = scale();
  at("cards").dataset.time = to;
  for (const card of CARDS) {
    const shown = cards.get(card.key);
    const write = card.write(told);
    shown.chart ??= new Chart(shown.home, { ...card.style, write: tick(card.axis ?? write) }, point);
    shown.series = card.series(points);
    shown.text.textContent = card.whole && chosen ? `${card.text} · the whole server` : card.text;
    shown.chart.draw({
      series: shown.series,
      times: points.map((each) => each.time),
      step: 2.5 * told.every_seconds,
      from, to, marks,
      empty: points.length ? card.empty : "Nothing measured yet",
      told: described(card, shown.series, write),
    });
  }
  showLegends();
}

/** The time that the charts show: all there is, in whole minutes, with names for some moments. */
function scale() {
  const to = told.points.at(-1)?.time ?? told.now;
  const there = 60 * Math.ceil((to - told.started) / 60);
  const span = Math.min(told.kept_seconds, Math.max(LEAST_SECONDS, there));
  const step = span <= 60 ? 15 : span <= 120 ? 30 : 60;
  const marks = [[to, "now"]];
  for (let ago = step; ago <= span; ago += step) marks.push([to - ago, ago < 60 ? `−${ago} s` : `−${ago / 60} min`]);
  return { from: to - span, to, marks };
}

function described(card, series, write) {
  const latest = series.map(({ name, values }) => `${name} ${write(values.at(-1) ?? null)}`);
  return `${card.title}, ${card.text}; now: ${latest.join(", ") || "nothing"}`;
}

function showLegends() {
  const index = pointed ?? told.points.length - 1;
  const there = told.points[index];
  for (const card of CARDS) {
    const { legend, note, series } = cards.get(card.key);
    const write = card.write(told);
    const entries = series.map(({ name, colour, values }) => {
      const value = make("b", { textContent: write(values[index] ?? null) });
      const entry = make("li", {}, make("i"), make("span", { textContent: name }), value);
      entry.dataset.series = name;
      entry.style.setProperty("--colour", `var(--${colour})`);
      return entry;
    });
    legend.replaceChildren(...entries);
    const time = pointed === null || !there ? "" : clock(there.time);
    note.textContent = time || (there && card.note ? card.note(there) : "");
    note.classList.toggle("time", Boolean(time));
  }
}

function showTotals() {
  const of = chosen ? `of ${chosen}; calls and refusals: of the whole server` : "of all models";
  sinceStart.textContent = `${moment(told.started)}, ${of}`;
  const groups = totals(told).map(([title, counts]) => {
    const rows = counts.map(([name, value]) => {
      const row = make("tr", {}, make("th", { scope: "row", textContent: name }), make("td", { textContent: count(value) }));
      row.dataset.total = name;
      row.dataset.value = value;
      return row;
    });
    const group = make("table", {}, make("caption", { textContent: title }), make("tbody", {}, ...rows));
    group.dataset.group = title;
    return group;
  });
  table.replaceChildren(...groups);
}
