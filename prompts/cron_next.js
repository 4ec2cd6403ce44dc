// List the next times of a cron expression, in UTC.
// Usage: cron_next EXPRESSION [--count N] [--from ISO-TIME]   (for example cron_next "*/15 9-17 * * mon-fri")
"use strict";

const MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS = [["minute", 0, 59], ["hour", 0, 23], ["day of month", 1, 31], ["month", 1, 12, MONTHS, 1], ["day of week", 0, 7, DAYS, 0]];
const MACROS = {
  "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
  "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
};
const DAY = 86_400_000;
const HORIZON = 30 * 366; // Days; the longest real gap is eight years, between leap days around 2100.

const usage = (message) => {
  console.error(`cron_next: ${message}\nusage: cron_next EXPRESSION [--count N] [--from ISO-TIME]`);
  process.exit(2);
};

function field(text, [name, low, high, names, offset]) {
  const set = new Set();
  const number = (word) => {
    const named = names ? names.indexOf(word.toLowerCase()) : -1;
    const value = named >= 0 ? named + offset : /^[0-9]+$/.test(word) ? Number(word) : NaN;
    if (!(value >= low && value <= high)) usage(`${JSON.stringify(word)} is not a ${name} (${low} to ${high})`);
    return value;
  };
  for (const part of text.split(",")) {
    const [range, step, ...more] = part.split("/");
    const [first, last, ...extra] = range.split("-");
    if (more.length || extra.length || (step !== undefined && !/^[1-9][0-9]*$/.test(step))) usage(`cannot read ${JSON.stringify(part)} in ${name}`);
    const start = range === "*" ? low : number(first);
    let end = range === "*" ? high : last !== undefined ? number(last) : step !== undefined ? high : start;
    if (name === "day of week" && end === 0 && start > 0) end = 7; // Sunday is both.
    if (end < start) usage(`the range ${JSON.stringify(range)} in ${name} runs backwards`);
    for (let value = start; value <= end; value += Number(step ?? 1)) set.add(name === "day of week" ? value % 7 : value);
  }
  return set;
}

function main(args) {
  let count = 5, from = new Date(), expression;
  for (let i = 0; i < args.length; i++) {
    if (args[i] === "--count") {
      count = Number(args[++i]);
      if (!(Number.isInteger(count) && count >= 1 && count <= 1000)) usage("--count takes a number from 1 to 1000");
    } else if (args[i] === "--from") {
      // A time without a zone is taken as UTC; JavaScript alone would take it as local time.
      const match = /^([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ]([0-9:.]+)(Z|[+-][0-9]{2}:[0-9]{2})?)?$/i.exec(args[++i] ?? "");
      from = new Date(match ? `${match[1]}T${match[2] ?? "00:00"}${match[3] ?? "Z"}` : NaN);
      if (Number.isNaN(from.getTime())) usage("--from takes a time such as 2026-01-31T12:00Z");
    } else if (expression === undefined) expression = args[i];
    else usage("put the expression in quotes so that it is one argument");
  }
  if (expression === undefined) usage("expected a cron expression");
  const parts = (MACROS[expression.trim().toLowerCase()] ?? expression).trim().split(/\s+/);
  if (parts.length !== 5) usage(`expected five fields but found ${parts.length}`);
  const [minutes, hours, days, months, weekdays] = parts.map((text, i) => field(text, FIELDS[i]));
  // As in classic cron, when both day fields are restricted either of them is enough.
  const either = !parts[2].startsWith("*") && !parts[4].startsWith("*");
  const midnight = Math.floor(from.getTime() / DAY) * DAY;
  let found = 0;
  for (let n = 0; n < HORIZON && found < count; n++) {
    const day = new Date(midnight + n * DAY);
    const monthDay = days.has(day.getUTCDate()), weekDay = weekdays.has(day.getUTCDay());
    if (!months.has(day.getUTCMonth() + 1) || !(either ? monthDay || weekDay : monthDay && weekDay)) continue;
    for (let minute = 0; minute < 1440 && found < count; minute++) {
      const time = new Date(day.getTime() + minute * 60_000);
      if (time <= from || !hours.has(Math.floor(minute / 60)) || !minutes.has(minute % 60)) continue;
      console.log(`${time.toISOString().slice(0, 16)}Z ${DAYS[time.getUTCDay()]}`);
      found++;
    }
  }
  if (found === 0) console.log("never: no such date in the next 30 years");
}

main(process.argv.slice(2));
