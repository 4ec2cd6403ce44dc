// Changes of a text that remember where each part has come from.

'use strict';

const { min } = Math;

/** A text that is changed. Positions are those in the text as it was. */
class Edits {
  #text;
  #edits = [];

  constructor(text) {
    this.#text = text;
  }

  /**
   * Replaces a range. `parts` are texts, with `from` if they stand for something elsewhere, and ranges of the text that
   * are moved there.
   */
  replace(start, end, ...parts) {
    this.#edits.push({ start, end, parts });
  }

  insert(at, ...parts) {
    this.replace(at, at, ...parts);
  }

  /** Inserts something before everything else that comes there. */
  insertFirst(at, ...parts) {
    this.#edits.unshift({ start: at, end: at, parts });
  }

  /** The text with all changes, and where its parts have come from. */
  apply() {
    // Keeps the order of those at one place.
    this.#edits.sort((a, b) => a.start - b.start || a.end - b.end);
    const pieces = [];
    this.#render({ start: 0, end: this.#text.length }, pieces);
    return new Edited(this.#text, pieces);
  }

  /** What changes the place from which a range was moved is not in it. */
  #render({ start, end }, pieces, isMoved = false) {
    let at = start;
    for (const edit of this.#edits) {
      if (edit.start < at || edit.end > end || (isMoved && edit.end === start)) continue;
      pieces.push({ text: this.#text.slice(at, edit.start), from: at, isKept: true });
      for (const part of edit.parts) {
        if (typeof part === 'string') pieces.push({ text: part, from: edit.start, isKept: false });
        else if ('text' in part) pieces.push({ ...part, isKept: false });
        else this.#render(part, pieces, true);
      }
      at = edit.end;
    }
    pieces.push({ text: this.#text.slice(at, end), from: at, isKept: true });
  }
}

class Edited {
  #before;
  #pieces;

  constructor(before, pieces) {
    this.#before = before;
    this.#pieces = pieces;
    this.text = pieces.map(({ text }) => text).join('');
  }

  /** Are all positions as they were? */
  get isInPlace() {
    let at = 0;
    for (const { text, from, isKept } of this.#pieces) {
      if (isKept && text !== '' && from !== at) return false;
      at += text.length;
    }
    return at === this.#before.length;
  }

  /** Where a position was before, both with a line and a column from 1. */
  origin(place) {
    const wanted = offsetOf(this.text, place);
    let at = 0;
    for (const { text, from, isKept } of this.#pieces) {
      if (wanted < at + text.length || wanted === this.text.length) {
        return placeOf(this.#before, isKept ? from + wanted - at : from);
      }
      at += text.length;
    }
    return placeOf(this.#before, this.#before.length);
  }
}

function offsetOf(text, { line, column }) {
  let at = 0;
  for (let i = 1; i < line; i += 1) {
    const end = text.indexOf('\n', at);
    if (end < 0) break;
    at = end + 1;
  }
  return min(at + column - 1, text.length);
}

function placeOf(text, offset) {
  const before = text.slice(0, offset);
  return { line: before.split('\n').length, column: offset - before.lastIndexOf('\n') };
}

module.exports = { Edits };
