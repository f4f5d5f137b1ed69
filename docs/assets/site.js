// What the theme leaves to be done for people who use a keyboard or a screen reader.
addEventListener("DOMContentLoaded", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");

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
