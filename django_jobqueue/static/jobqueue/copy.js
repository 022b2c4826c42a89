// Buttons that copy a command or an id. They are hidden without JavaScript.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
    for (const button of document.querySelectorAll("[data-jq-copy]")) {
        button.classList.remove("hidden");
        button.addEventListener("click", async () => {
            const text = button.dataset.jqCopy;
            try {
                await navigator.clipboard.writeText(text);
            } catch { // only pages of https:// and of this computer have a clipboard
                const field = document.createElement("textarea");
                field.value = text;
                document.body.append(field);
                field.select();
                document.execCommand("copy");
                field.remove();
            }
            button.classList.add("jq-copied");
        });
    }
});
