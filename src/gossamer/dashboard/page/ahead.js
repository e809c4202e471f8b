// Asks for the runs while the modules are still on their way: the table is what the first page waits for.

globalThis.gossamerAhead = fetch("api/runs", { cache: "no-store" });
globalThis.gossamerAhead.catch(() => {}); // whoever takes it hears of the failure
