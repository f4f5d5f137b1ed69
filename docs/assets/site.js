// The search is for words as they stand on a screen. lunr would take the `--workers` of a command for "without" and what
// is before a colon for a field; it knows no number such as the `-9` of `exitcode: -9`, and finds `GPU利用率` only with
// the space that few people type. And pages in the language of the page that is read come first. The theme has no hook
// for either, so this changes what it sends to its search's worker (docs/private-parts.md).
{
  const SETUP = 0, QUERY = 2, OF_OTHER_LANGUAGE = 0.1;
  const isChinese = document.documentElement.lang === "zh";
  const factor = doc => doc.location.startsWith("zh/") === isChinese ? 1 : OF_OTHER_LANGUAGE;
  const ranked = doc => ({ ...doc, boost: (doc.boost ?? 1) * factor(doc) });
  const plain = words => words.replace(/[:\u3000、，。：；！？（）“”《》]+/g, " ")
    .replace(/(^|\s)[-+~^*]+\d*/g, "$1")
    .replace(/(\p{Script=Han})(?=\w)/gu, "$1 ").replace(/(\w)(?=\p{Script=Han})/gu, "$1 ");
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function ({ type, data }, ...rest) {
    if (type === SETUP) data = { ...data, docs: data.docs.map(ranked) };
    if (type === QUERY) data = plain(data);
    return post.call(this, { type, data }, ...rest);
  };
}

// What the theme leaves to be done for people who use a keyboard or a screen reader.
addEventListener("DOMContentLoaded", () => {
  const search = document.querySelector(".md-search");
  search?.setAttribute("aria-label", search.querySelector(".md-search__input").placeholder);

  // The theme names the list of a section that has a page of its own by an icon without words.
  for (const list of document.querySelectorAll("nav.md-nav[aria-labelledby]")) {
    if (document.getElementById(list.getAttribute("aria-labelledby"))?.textContent.trim()) continue;
    list.removeAttribute("aria-labelledby");
    list.setAttribute("aria-label", list.querySelector(":scope > .md-nav__title").textContent.trim());
  }

  // The theme puts a button to copy into each block of code, in a landmark that has no name.
  const copying = () => {
    for (const one of document.querySelectorAll("nav.md-code__nav:not([role])")) one.setAttribute("role", "none");
  };
  new MutationObserver(copying).observe(document.querySelector(".md-content"), { childList: true, subtree: true });
  copying();

  // What scrolls sideways is reached by the keyboard, and nothing else is.
  const scrolled = () => {
    for (const one of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
      if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
      else one.removeAttribute("tabindex");
    }
  };
  new ResizeObserver(scrolled).observe(document.querySelector(".md-content"));
});
