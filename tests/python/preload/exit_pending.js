// What was written before the exit arrives as much or as little as in any other start: all of it.
process.stdout.write('x'.repeat(1 << 20) + '\n');
console.error('e'.repeat(200_000));
process.exit(0);
