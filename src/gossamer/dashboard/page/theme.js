// Dark or light: as the system says until somebody presses the button, whose choice is kept.
// A plain script and no module: it runs before the page is drawn, which never flashes in the other colours.

globalThis.gossamerTheme = (() => {
  const KEY = "gossamer-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;

  function kept() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage may be forbidden
    }
  }

  function apply() {
    const choice = kept();
    root.dataset.theme = choice === "dark" || choice === "light" ? choice : system.matches ? "dark" : "light";
  }

  apply();
  return {
    /** Change to the other colours and keep the choice. */
    toggle() {
      const next = root.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem(KEY, next);
      } catch {
        // without storage the choice lasts as long as the page
      }
      root.dataset.theme = next;
    },
    /** Call `changed` after the system's colours have changed. */
    follow(changed) {
      system.addEventListener("change", () => {
        apply();
        changed();
      });
    },
  };
})();
