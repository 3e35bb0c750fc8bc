// A question before a result, `:::{div} ln-predict` on a page: the reader's guess is kept in this browser, and what was
// computed appears beside it; with `ln-all`, the results of the cells after it are hidden, too. Without scripts, and on paper, the
// question stands above its result.
document.addEventListener("DOMContentLoaded", () => {
  const page = location.pathname.split("/").pop();
  document.querySelectorAll(".ln-predict").forEach((box, number) => {
    const next = box.nextElementSibling, result = next?.querySelector(".cell_output") ?? next;
    if (!result) return;
    const covered = [result];  // and the sentences after it, which say what it shows
    for (let part = next.nextElementSibling; part?.matches(box.matches(".ln-all") ? "p, .cell" : "p"); part = part.nextElementSibling)
      covered.push(part.querySelector(".cell_output") ?? part);
    const key = `layer-norm-backwards guess:${page}:${number}`;
    const make = (tag, properties) => Object.assign(document.createElement(tag), properties);
    const label = make("label", { textContent: "Your guess " });
    const guess = make("input", { type: "text", size: 12, autocomplete: "off" });
    const press = make("button", { className: "ln-button", textContent: "Show the result" });
    const form = make("form", {});
    const said = make("p", { className: "ln-guess", tabIndex: -1 });
    label.append(guess);
    form.append(label, press);
    box.append(form, said);
    said.setAttribute("role", "status");

    const show = (text) => {
      form.hidden = true;
      said.textContent = text ? `You guessed: ${text}` : "";
      said.hidden = !text;
      covered.forEach((part) => part.classList.remove("ln-covered"));
      dispatchEvent(new Event("resize"));  // what scrolls sideways is looked for anew
    };
    const before = (() => { try { return localStorage.getItem(key); } catch { return null; } })();
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = guess.value.trim();
      try { if (text) localStorage.setItem(key, text); } catch { /* this browser keeps nothing */ }
      show(text);
      (text ? said : box).focus();
    });
    box.tabIndex = -1;
    said.hidden = true;
    if (before) show(before);
    else covered.forEach((part) => part.classList.add("ln-covered"));
    // Who follows a link to the result, or a search that found a word in it, wants to see it.
    const wanted = (part) => part.matches(":target") || part.querySelector(":target, .highlighted");
    const linked = () => { if (covered.some(wanted)) show(before); };
    addEventListener("hashchange", linked);
    addEventListener("load", linked);
  });
});
