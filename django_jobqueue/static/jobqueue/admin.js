// Runs a large operation while its page is open, in requests of about a second.
// Refreshes the overview: asks for the pulse every few seconds, and for the whole page only when the pulse has changed.
"use strict";
{
    const show = (name, text) => {
        const element = document.querySelector(`[data-jq="${name}"]`);
        if (element) element.textContent = text;
    };
    const REFRESH_MS = 3000;
    let asking = false;
    const refresh = async overview => {
        if (asking || document.hidden) return;
        asking = true;
        try {
            const answer = await fetch(overview.dataset.jqPulseUrl, {headers: {"Accept": "application/json"}});
            if (!answer.ok) return;
            const beat = await answer.json();
            show("running", beat.running);
            const body = overview.querySelector("[data-jq-body]");
            if (body.querySelector("[data-jq-pulse]").dataset.jqPulse === beat.pulse) return;
            const fresh = await fetch(overview.dataset.jqBodyUrl + window.location.search);
            if (fresh.ok && !body.contains(document.activeElement)) body.innerHTML = await fresh.text();
        } catch {
            // The next request may succeed.
        } finally {
            asking = false;
        }
    };
    const advance = async section => {
        const token = section.querySelector("[name=csrfmiddlewaretoken]").value;
        const answer = await fetch(section.dataset.jqAdvance, {
            method: "POST",
            headers: {"X-CSRFToken": token, "Accept": "application/json"},
        });
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        const reached = await answer.json();
        section.querySelector('[data-jq="percent"]').value = reached.percent;
        show("percent-text", `${reached.percent} %`);
        show("moved", reached.moved);
        show("refused", reached.refused);
        return reached.state === "running";
    };
    const runToEnd = async section => {
        const problem = section.querySelector('[data-jq="problem"]');
        let failures = 0;
        for (;;) {
            try {
                if (!await advance(section)) break;
                failures = 0;
                problem.classList.add("hidden");
            } catch {
                failures += 1;
                problem.classList.remove("hidden");
                if (failures > 5) return;
                await new Promise(done => setTimeout(done, 1000 * failures));
            }
        }
        window.location.reload();
    };
    // On narrow screens each row of a table is a card, and each cell has the head of its column as a label.
    const label = () => {
        for (const table of document.querySelectorAll("#result_list, .jq-cards")) {
            const heads = Array.from(table.querySelectorAll("thead th"), head => head.textContent.trim());
            for (const row of table.querySelectorAll("tbody tr")) {
                Array.from(row.children).forEach((cell, place) => cell.setAttribute("data-label", heads[place] ?? ""));
            }
        }
    };
    document.addEventListener("jq:renewed", label);
    document.addEventListener("DOMContentLoaded", () => {
        label();
        const section = document.querySelector("[data-jq-operation][data-jq-running]");
        if (section) runToEnd(section);
        const overview = document.querySelector("[data-jq-overview]");
        if (overview) setInterval(() => refresh(overview), REFRESH_MS);
    });
}
