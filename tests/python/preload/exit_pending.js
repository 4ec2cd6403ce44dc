// What was written before the exit arrives: all that the pipes hold.
process.stdout.write('x'.repeat(40_000) + '\n');
console.error('e'.repeat(20_000));
process.exit(0);
