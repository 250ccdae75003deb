// Sets the chosen theme before anything is drawn, so that a dark page does not flash white. Loaded as a plain script.
(() => {
  let theme = null;
  try {
    theme = localStorage.getItem("theme");
  } catch {
    // Storage is switched off: follow the system.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
