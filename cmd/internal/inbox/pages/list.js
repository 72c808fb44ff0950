// Shows new messages without a reload by hand: asks the API for the newest
// one, and fetches the page again only when something has changed.
const interval = 2000;

async function refresh() {
  if (document.hidden) return;
  const shown = document.getElementById("inbox");
  const state = await (await fetch("/api/messages?limit=1")).json();
  const newest = state.messages[0]?.id ?? "";
  if (newest === shown.dataset.newest && String(state.total) === shown.dataset.total) return;
  const html = await (await fetch("/")).text();
  const page = new DOMParser().parseFromString(html, "text/html");
  document.title = page.title;
  shown.replaceWith(page.getElementById("inbox"));
}

// A failure is the inbox being restarted: the next try will tell.
setInterval(() => refresh().catch(() => {}), interval);
