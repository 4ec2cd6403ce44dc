// Compute with dates, weeks and working days.
// Usage: date_math DATE {DATE | OFFSET ...}   (OFFSET is for example +90d, -2w, +1m, -3y or +10b for working days)
"use strict";

const DAY = 86_400_000;
const NAMES = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

const usage = (message) => {
  console.error(`date_math: ${message}\nusage: date_math YYYY-MM-DD YYYY-MM-DD | date_math YYYY-MM-DD {+|-}N{d|w|m|y|b} ...`);
  process.exit(2);
};

// Dates are whole days in UTC, where every day has the same length.
const utc = (year, month, day) => { const date = new Date(0); date.setUTCFullYear(year, month, day); return date; };
const working = (date) => date.getUTCDay() % 6 !== 0;
const plusDays = (date, days) => new Date(date.getTime() + days * DAY);
const show = (date) => date.toISOString().slice(0, date.getUTCFullYear() > 9999 ? 13 : 10);

function parse(text) {
  const match = /^([0-9]{4})-([0-9]{2})-([0-9]{2})$/.exec(text);
  const date = match ? utc(Number(match[1]), Number(match[2]) - 1, Number(match[3])) : null;
  if (!date || show(date) !== text) usage(`${JSON.stringify(text)} is not a date in the form YYYY-MM-DD`);
  return date;
}

function plusMonths(date, months) {
  const first = utc(date.getUTCFullYear(), date.getUTCMonth() + months, 1);
  const last = utc(first.getUTCFullYear(), first.getUTCMonth() + 1, 0).getUTCDate();
  // 31 January plus one month is the last day of February, not a day in March.
  return utc(first.getUTCFullYear(), first.getUTCMonth(), Math.min(date.getUTCDate(), last));
}

function plusWorking(date, count) {
  for (let left = Math.abs(count); left > 0; ) {
    date = plusDays(date, Math.sign(count));
    if (working(date)) left--;
  }
  return date;
}

function describe(date) {
  const thursday = plusDays(date, 3 - ((date.getUTCDay() + 6) % 7)); // ISO weeks belong to the year of their Thursday.
  const year = thursday.getUTCFullYear();
  const week = 1 + Math.floor((thursday - utc(year, 0, 1)) / DAY / 7);
  const ordinal = (date - utc(date.getUTCFullYear(), 0, 1)) / DAY + 1;
  return `${show(date)} ${NAMES[date.getUTCDay()]}, day ${ordinal} of the year, ISO week ${year}-W${String(week).padStart(2, "0")}`;
}

function between(start, end) {
  const [low, high] = start <= end ? [start, end] : [end, start];
  const days = (high - low) / DAY;
  let months = (high.getUTCFullYear() - low.getUTCFullYear()) * 12 + high.getUTCMonth() - low.getUTCMonth();
  while (plusMonths(low, months) > high) months--;
  const rest = (high - plusMonths(low, months)) / DAY;
  let business = Math.floor(days / 7) * 5;
  for (let day = plusDays(low, days - (days % 7)); day < high; day = plusDays(day, 1)) business += working(day) ? 1 : 0;
  console.log(`from ${describe(start)}\nto ${describe(end)}`);
  console.log(`days: ${start <= end ? days : -days}\nweeks: ${Math.floor(days / 7)} and ${days % 7} days`);
  console.log(`calendar: ${Math.floor(months / 12)} years, ${months % 12} months, ${rest} days`);
  console.log(`working days (Monday to Friday, without the later date): ${business}`);
}

function main([first, ...rest]) {
  if (first === undefined || rest.length === 0) usage("expected a date and either a second date or an offset");
  let date = parse(first);
  if (rest.length === 1 && !/^[+-]/.test(rest[0])) return between(date, parse(rest[0]));
  for (const offset of rest) {
    const match = /^([+-][0-9]{1,6})([dwmyb])$/.exec(offset);
    if (!match) usage(`${JSON.stringify(offset)} is not an offset such as +90d`);
    const n = Number(match[1]), unit = match[2];
    date = unit === "b" ? plusWorking(date, n) : unit === "m" || unit === "y" ? plusMonths(date, unit === "y" ? n * 12 : n) : plusDays(date, unit === "w" ? n * 7 : n);
    if (Number.isNaN(date.getTime()) || date < utc(1, 0, 1) || date > utc(9999, 11, 31)) usage("the result is outside the years 1 to 9999");
  }
  console.log(describe(date));
}

main(process.argv.slice(2));
