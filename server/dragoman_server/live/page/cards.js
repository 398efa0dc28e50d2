// What there is to see: the numbers at the top, and the charts.

import { bytes, count, rate, seconds, share } from "./format.js";

const QUANTILES = ["p50", "p95", "p99"];
const QUANTILE_COLOURS = ["blue", "amber", "pink"];
const COLOURS = ["red", "amber", "violet", "teal", "pink", "blue", "brown", "grey"];
const CODE_COLOURS = {
  OK: "green",
  CANCELLED: "grey",
  INVALID_ARGUMENT: "violet",
  NOT_FOUND: "teal",
  RESOURCE_EXHAUSTED: "amber",
  DEADLINE_EXCEEDED: "pink",
  INTERNAL: "red",
  UNAVAILABLE: "brown",
  UNAUTHENTICATED: "blue",
};

const ALARMING = 0.01; // share of calls that fail

const sum = (numbers) => Object.values(numbers).reduce((all, each) => all + each, 0);
const failing = (codes) => sum(codes) - (codes.OK ?? 0);

/** A time that may be beyond what is measured. */
export const bounded = (most) => (value) => (value !== null && value >= most ? `> ${seconds(most)}` : seconds(value));

/** A series for every name that comes up in any of the points. */
function named(points, pick, colour = {}) {
  const names = [...new Set(points.flatMap((point) => Object.keys(pick(point))))].sort(
    (one, two) => (two === "OK") - (one === "OK") || one.localeCompare(two),
  );
  let next = 0;
  return names.map((name) => ({
    name,
    colour: colour[name] ?? COLOURS[next++ % COLOURS.length],
    values: points.map((point) => pick(point)[name] ?? 0),
  }));
}

/** One series for each of some values of a point. */
const fixed = (points, list) =>
  list.map(([name, colour, pick]) => ({ name, colour, values: points.map((point) => pick(point)) }));

const quantiles = (key) => (points) =>
  fixed(points, QUANTILES.map((name, at) => [name, QUANTILE_COLOURS[at], (point) => point[key]?.[at] ?? null]));

const times = (key, title, text, empty) => ({
  key, title, text, empty, series: quantiles(key), write: (told) => bounded(told.measured_up_to[key]), axis: seconds,
});

export function failures(point) {
  const found = {};
  for (const [reason, value] of Object.entries(point.rejections)) found[`refused: ${reason}`] = value;
  for (const [reason, value] of Object.entries(point.drops)) found[`given up: ${reason}`] = value;
  for (const [kind, value] of Object.entries(point.device_errors)) found[`device: ${kind}`] = value;
  return found;
}

/**
 * Each with: `series`, made of points; `write`, how a value is written; `style` of the chart; `whole` where it tells of
 * the whole server even if one model is chosen.
 */
export const CARDS = [
  {
    key: "codes", title: "Calls per second", text: "by gRPC status code", empty: "No calls in these minutes", whole: true,
    series: (points) => named(points, (point) => point.codes, CODE_COLOURS), write: () => rate, style: { stacked: true },
  },
  times("first_token", "Time to first token", "from a request's arrival", "No first tokens in these minutes"),
  times("inter_token", "Between two tokens", "of one answer", "No two tokens of an answer in these minutes"),
  times("generation", "End to end", "from a request's arrival to its answer", "No answers in these minutes"),
  {
    key: "load", title: "Waiting and running", text: "requests in the queue, rows that are decoded", empty: "No model is loaded",
    series: (points) =>
      fixed(points, [
        ["waiting", "amber", (point) => (point.rows ? point.waiting : null)],
        ["running", "blue", (point) => (point.rows ? point.running : null)],
      ]),
    write: () => count, style: { whole: true },
    note: (point) => (point.rows ? `room for ${count(point.rows)} rows` : ""),
  },
  {
    key: "step_rows", title: "Rows per step", text: "decoded together, on average", empty: "No steps in these minutes",
    series: (points) => fixed(points, [["rows", "violet", (point) => point.step_rows]]), write: () => rate,
    note: (point) => `${rate(point.steps)} steps per second`,
  },
  {
    key: "tokens", title: "Tokens per second", text: "read, and written in answers", empty: "No model is loaded",
    series: (points) =>
      fixed(points, [
        ["target", "blue", (point) => (point.rows ? point.tokens.target : null)],
        ["source", "teal", (point) => (point.rows ? point.tokens.source : null)],
      ]),
    write: () => rate,
    note: (point) => `${rate(point.answers)} answers per second`,
  },
  {
    key: "cache", title: "Cache in use", text: "share of the rows' memory", empty: "No model is loaded",
    series: (points) =>
      fixed(points, [["in use", "teal", (point) => (point.cache.bytes ? point.cache.used / point.cache.bytes : null)]]),
    write: () => share, style: { most: 1 },
    note: (point) => (point.cache.bytes ? `${bytes(point.cache.used)} of ${bytes(point.cache.bytes)}` : ""),
  },
  {
    key: "errors", title: "Errors per second", text: "calls that ended with another code than OK",
    empty: "No errors in these minutes", whole: true,
    series: (points) =>
      named(points, ({ codes }) => Object.fromEntries(Object.entries(codes).filter(([code]) => code !== "OK")), CODE_COLOURS),
    write: () => rate, style: { stacked: true },
  },
  {
    key: "failures", title: "Why requests failed", text: "refused, given up or lost, per second",
    empty: "None failed in these minutes",
    series: (points) => named(points, failures), write: () => rate, style: { stacked: true },
  },
];

const p95 = (key, title) => ({
  key, title,
  value: (point, told) => bounded(told.measured_up_to[key])(point[key]?.[1] ?? null),
  text: (point) => (point[key] ? "95 of 100 are faster" : "none to measure"),
});

export const TILES = [
  {
    key: "calls", title: "Calls per second",
    value: (point) => rate(sum(point.codes)),
    text: (point) => (sum(point.codes) ? `${rate(point.codes.OK ?? 0)} of them OK` : "nobody calls"),
  },
  {
    key: "errors", title: "Errors",
    value: (point) => (sum(point.codes) ? share(failing(point.codes) / sum(point.codes)) : share(null)),
    text: (point) => (sum(point.codes) ? "of all calls" : "no calls to judge by"),
    alarm: (point) => failing(point.codes) > ALARMING * sum(point.codes),
  },
  p95("first_token", "First token"),
  p95("inter_token", "Between tokens"),
  p95("generation", "End to end"),
  {
    key: "tokens", title: "Tokens per second",
    value: (point) => (point.rows ? rate(point.tokens.target) : rate(null)),
    text: (point) => (point.rows ? `in ${rate(point.answers)} answers` : "no model is loaded"),
  },
  {
    key: "waiting", title: "Waiting",
    value: (point) => (point.rows ? count(point.waiting) : count(null)),
    text: (point) => (point.rows ? `${count(point.running)} of ${count(point.rows)} rows run` : "no model is loaded"),
    alarm: (point) => point.waiting > 0,
  },
  {
    key: "cache", title: "Cache in use",
    value: (point) => share(point.cache.bytes ? point.cache.used / point.cache.bytes : null),
    text: (point) => (point.cache.bytes ? `of ${bytes(point.cache.bytes)}` : "no model is loaded"),
  },
];

/** What has been counted since the start, as rows of a table. */
export function totals(told) {
  const { codes, finishes, rejections, drops, device_errors: device, tokens } = told.totals;
  const group = (title, counts) => [title, Object.entries(counts).sort((one, two) => two[1] - one[1])];
  return [
    group("Calls", codes),
    group("Answers, by why they ended", finishes),
    group("Refused", rejections),
    group("Given up", drops),
    group("Failures of the device", device),
    ["Tokens", [["source", tokens.source], ["target", tokens.target]]],
  ].filter(([, counts]) => counts.length);
}
