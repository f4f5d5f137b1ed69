// The box "Paste the end of your log" on the page of symptoms. It ranks the sections of that page for the pasted text,
// by the site's own search index; what is pasted never leaves the page. Without JavaScript the page is as it was.
// A log is English, so the Chinese page asks the index of the English ones, and leads to its own section of that number.
//
// A section's score is the sum of
//   - BM25 (k1 = 1.2, b = 0.75) over the words of the pasted text, with all sections of the site as the corpus, so that
//     a word counts the less the more sections have it;
//   - 12 for each quotation in its heading, and 4 for each in its text, that the pasted text has word for word. A
//     quotation is what stands as code; numbers of four digits or more, such as process ids, are any number.
(() => {
  const WORDS = {
    en: {
      none: "No section of this page fits. For a training that still runs, ask its process: ", read: "Read ", command: ". Its command: ",
      quotes: line => `It quotes what you pasted: “${line}”.`,
      label: "Paste the end of your log", note: "The page compares it with its own sections. Nothing is sent anywhere.",
    },
    zh: {
      none: "这一页没有对得上的小节。训练还在运行的话，直接检查它的进程：", read: "请看：", command: "。要用的命令：",
      quotes: line => `你粘贴的内容里有它引用的这一句：“${line}”。`,
      label: "把日志末尾粘贴到这里", note: "网页只在本地把它和各个小节对照，不会发送到任何地方。",
    },
  };
  const say = WORDS[document.documentElement.lang] ?? WORDS.en;
  const K1 = 1.2, B = 0.75, OF_HEADING = 12, OF_TEXT = 4, ENOUGH = 4;
  const words = text => text.toLowerCase().match(/[a-z_]{2,}[a-z0-9_]*|\d+\.\d\d/g) ?? [];
  const plain = text => text.toLowerCase().replace(/\d{4,}/g, "#").replace(/[\s:=|]+/g, " ").trim();
  const parsed = html => new DOMParser().parseFromString(html, "text/html").body;

  const quotations = body => [...body.querySelectorAll("code")].flatMap(code => code.textContent.split("\n"))
    .filter(line => !line.startsWith("$ ")).map(plain)
    .filter(line => line.split(" ").length > 1 && line.length > 7);

  function section({ location, title, text }) {
    const heading = parsed(title), body = parsed(text);
    const counts = new Map();
    for (const word of words(`${heading.textContent} ${body.textContent}`)) counts.set(word, (counts.get(word) ?? 0) + 1);
    const command = [...body.querySelectorAll("code")].flatMap(code => code.textContent.split("\n"))
      .map(line => line.replace(/^\$ /, "")).find(line => /^tarmac [a-z]/.test(line));
    return {
      id: location.split("#")[1], heading, command, counts, length: [...counts.values()].reduce((a, b) => a + b, 0),
      quoted: new Map([...quotations(body).map(line => [line, OF_TEXT]), ...quotations(heading).map(line => [line, OF_HEADING])]),
    };
  }

  function ranked(sections, candidates, log) {
    const average = sections.reduce((sum, one) => sum + one.length, 0) / sections.length;
    const asked = new Set(words(log)), said = plain(log);
    const weight = new Map([...asked].map(word => {
      const having = sections.filter(one => one.counts.has(word)).length;
      return [word, Math.log(1 + (sections.length - having + 0.5) / (having + 0.5))];
    }));
    return candidates.map(one => {
      let score = 0;
      for (const word of asked) {
        const count = one.counts.get(word) ?? 0;
        score += weight.get(word) * count * (K1 + 1) / (count + K1 * (1 - B + B * one.length / average));
      }
      const found = [...one.quoted].filter(([line]) => said.includes(line));
      for (const [, points] of found) score += points;
      return { ...one, score, found: found.sort((a, b) => b[1] - a[1]).map(([line]) => line) };
    }).sort((a, b) => b.score - a.score);
  }

  function show(output, best) {
    output.replaceChildren();
    const add = (name, text, parent = output) => parent.appendChild(Object.assign(document.createElement(name), { textContent: text }));
    if (!best || best.score < ENOUGH) {
      const line = add("p", say.none);
      add("code", "tarmac doctor --pid PID", line).className = "paste-command";
      return;
    }
    const line = add("p", say.read);
    const link = add("a", "", line);
    link.href = `#${best.id}`;
    link.replaceChildren(...best.heading.childNodes);
    if (best.command) {
      line.append(say.command);
      add("code", best.command, line).className = "paste-command";
    }
    if (best.found.length) add("p", say.quotes(best.found[0]));
  }

  function translate(section, heading) {
    section.id = heading.id;
    section.heading = heading.cloneNode(true);
    section.heading.querySelector(".headerlink")?.remove();
  }

  async function begin() {
    const first = document.querySelector(".md-content h2[id]");
    const base = new URL(JSON.parse(document.getElementById("__config").textContent).base, location);
    const page = location.pathname.slice(base.pathname.replace(/\/?$/, "/").length).replace(/index\.html$/, "");
    if (!/^(zh\/)?symptoms\/$/.test(page) || !first || location.protocol === "file:") return;  // a file may read no other
    const index = await (await fetch(new URL("search/search_index.json", `${base.href.replace(/\/?$/, "/")}`))).json();
    const english = index.docs.filter(one => !one.location.startsWith("zh/"));
    const sections = english.map(section);
    const headings = [...document.querySelectorAll(".md-content h2[id], .md-content h3[id]")];
    const candidates = sections.filter((one, number) => one.id && english[number].location.startsWith("symptoms/"));
    if (page.startsWith("zh/")) candidates.forEach((one, number) => translate(one, headings[number]));
    const box = document.createElement("div");
    box.className = "paste-box";
    box.innerHTML = `<label for="pasted">${say.label}</label>
      <textarea id="pasted" spellcheck="false" autocomplete="off" aria-describedby="pasted-note"></textarea>
      <p id="pasted-note">${say.note}</p><output for="pasted"></output>`;
    first.before(box);
    const pasted = box.querySelector("textarea");
    pasted.addEventListener("input", () => {
      const log = pasted.value.trim();
      if (log) show(box.querySelector("output"), ranked(sections, candidates, log)[0]);
      else box.querySelector("output").replaceChildren();
    });
  }
  addEventListener("DOMContentLoaded", begin);
})();
