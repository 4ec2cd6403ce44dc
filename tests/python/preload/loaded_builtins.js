// Which of Node's own modules are there before the program asks for any.
console.log(process.moduleLoadList.filter((name) => !name.includes('internal/deps')).sort().join('\n'));
