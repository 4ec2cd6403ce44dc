// The question to the runner: one line of JSON, answered by lines of JSON.

'use strict';

const net = require('node:net');

const SOCKET = '\0isolator-packages';
const LONGEST_REQUEST = 64 << 10;
const LONGEST_ANSWER = 64 << 20;

// Text of others, in which no character moves the cursor or hides another one.
function clean(text) {
  return String(text).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => (c === '\n' ? c : `\\u{${c.codePointAt(0).toString(16)}}`));
}

// The packages are not there. `kind` is one of the runner's words.
class Refused extends Error {
  constructor(reason, kind = 'failed') {
    super(reason);
    this.kind = kind;
  }
}

// Asks for packages. Settles with the packages of the set and the names of the new ones.
function ask(requirements, upgrade, showProgress) {
  const line = `${JSON.stringify({ language: 'javascript', requirements, upgrade })}\n`;
  if (Buffer.byteLength(line) > LONGEST_REQUEST) {
    return Promise.reject(new Refused(`the requirements are longer than the ${LONGEST_REQUEST} bytes that can be asked for at once`));
  }
  return new Promise((resolve, reject) => {
    const socket = net.connect({ path: SOCKET });
    let rest = '';
    let length = 0;
    const settle = (how, value) => {
      socket.destroy();
      how(value);
    };
    socket.setEncoding('utf8');
    socket.on('connect', () => socket.write(line));
    socket.on('error', (error) => {
      const reason = `the runner of this sandbox gives no packages (${error.code}): use what the image has, or name packages in the call`;
      settle(reject, new Refused(reason, 'off'));
    });
    socket.on('end', () => settle(reject, new Refused('the runner ended the request without an answer: try again')));
    socket.on('data', (text) => {
      length += text.length;
      if (length > LONGEST_ANSWER) settle(reject, new Refused('the answer of the runner is too long'));
      const lines = (rest + text).split('\n');
      rest = lines.pop();
      for (const each of lines) {
        try {
          const answer = JSON.parse(each);
          if (answer.progress !== undefined) showProgress(clean(answer.progress));
          else if (answer.refused) settle(reject, new Refused(clean(answer.refused.reason), String(answer.refused.kind)));
          else {
            const packages = answer.bound.packages.map((it) => ({ name: clean(it.name), version: clean(it.version) }));
            settle(resolve, { packages, added: new Set(answer.bound.new.map(clean)) });
          }
        } catch {
          settle(reject, new Refused(`the runner gave an answer that can't be read: ${clean(each.slice(0, 200))}`));
        }
      }
    });
  });
}

module.exports = { Refused, ask, clean };
