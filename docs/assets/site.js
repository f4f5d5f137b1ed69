// What the theme leaves to be done for people who use a keyboard or a screen reader.
addEventListener("DOMContentLoaded", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  const scrolled = () => {
    for (const one of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
      if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
      else one.removeAttribute("tabindex");
    }
  };
  addEventListener("load", scrolled);
  addEventListener("resize", scrolled);
});
