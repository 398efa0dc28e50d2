// Numbers as people read them. What is not known is NONE.

export const NONE = "–";

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Three digits that count, but never fewer than stand before the point. */
function digits(value) {
  const size = Math.abs(value);
  if (size >= 99.95 || value === 0) return grouped.format(value);
  return value.toFixed(size >= 9.995 ? 1 : 2);
}

const known = (write) => (value) => (value === null || value === undefined ? NONE : write(value));

export const count = known((value) => (Number.isInteger(value) ? grouped.format(value) : digits(value)));
export const rate = known((value) => (value > 0 && value < 0.005 ? "< 0.01" : digits(value)));
export const share = known((value) => {
  if (value > 0 && value < 0.001) return "< 0.1 %";
  return `${value > 0.999 && value < 1 ? "> 99.9" : Number((100 * value).toFixed(1))} %`;
});

export const seconds = known((value) => {
  if (value < 0.9995) return `${digits(1000 * value)} ms`;
  return value < 120 ? `${digits(value)} s` : `${digits(value / 60)} min`;
});

export const bytes = known((value) => {
  let unit = 0;
  while (value >= 1023.5 && unit < UNITS.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${unit ? digits(value) : value} ${UNITS[unit]}`;
});

/** How long something has been so, to the larger of two units. */
export function since(value) {
  for (const [name, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (value >= size) return `${Math.floor(value / size)} ${name}`;
  }
  return `${Math.max(0, Math.floor(value))} s`;
}

export const clock = (time) => new Date(1000 * time).toLocaleTimeString([], { timeStyle: "medium" });

export const moment = (time) => new Date(1000 * time).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });

/** A number of an axis, without noughts at its end. */
export const tick = (write) => (value) => (value === 0 ? "0" : write(value)).replace(/(\.\d*?)0+(?=\s|$)/, "$1").replace(/\.(?=\s|$)/, "");
