// How well what was typed fits what is here already, pages and commands; the server ranks what it finds alike.

/** From 0 (does not fit) on; a word at the start of the text counts most, then at the start of a word, then anywhere. */
export function fit(typed, text) {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const low = text.toLowerCase();
  let total = 0;
  for (const word of words) {
    const at = low.indexOf(word);
    if (at < 0) return 0;
    total += at === 0 ? 8 : /[a-z0-9]/.test(low[at - 1]) ? 3 : 5;
  }
  return words.length ? total + 1 / (1 + low.length) : 0;
}
