// The theme lets the keyboard reach what scrolls sideways, and looks for it when the window changes its size.
// Opening a folded part shows more of it: look again.
document.addEventListener("click", (event) => {
  if (event.target.closest(".toggle-button, .admonition-title, summary")) window.dispatchEvent(new Event("resize"));
});
