// Runs a large operation while its page is open, in requests of about a second. Copies ids, numbers and commands.
// Labels the cells of tables that are cards on narrow screens.
"use strict";
{
    const show = (name, text) => {
        const element = document.querySelector(`[data-jq="${name}"]`);
        if (element) element.textContent = text;
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
        show("moved", reached.moved.toLocaleString("en"));
        show("refused", reached.refused.toLocaleString("en"));
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
    const copied = text => {
        const area = document.createElement("textarea");  // pages without HTTPS have no navigator.clipboard
        area.value = text;
        area.className = "visually-hidden";
        document.body.append(area);
        area.select();
        const done = document.execCommand("copy");
        area.remove();
        return done;
    };
    const copy = async button => {
        const status = button.parentElement.querySelector("[role=status]");
        const text = button.dataset.jqCopy;
        let done = false;
        try {
            if (navigator.clipboard) {
                await navigator.clipboard.writeText(text);
                done = true;
            }
        } catch {
            // The user may have forbidden it.
        }
        done = done || copied(text);
        button.focus();
        status.textContent = done ? status.dataset.jqCopied : status.dataset.jqNotCopied;
        setTimeout(() => { status.textContent = ""; }, 3000);
    };
    document.documentElement.classList.add("jq-script");
    document.addEventListener("click", event => {
        const button = event.target.closest("[data-jq-copy]");
        if (button) copy(button);
    });
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
    });
}
