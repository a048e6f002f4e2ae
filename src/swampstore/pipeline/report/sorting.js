// Headings of tables become buttons that sort by their column. Without this, nothing is missing.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  for (const heading of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    const isNumber = heading.classList.contains("number");
    const key = (row) => {
      const cell = row.cells[heading.cellIndex];
      const value = cell.dataset.value ?? cell.textContent;
      return isNumber ? Number(value) : value;
    };
    button.addEventListener("click", () => {
      const isUp = heading.ariaSort ? heading.ariaSort === "descending" : !isNumber;
      for (const other of table.tHead.rows[0].cells) other.ariaSort = null;
      heading.ariaSort = isUp ? "ascending" : "descending";
      const compare = (a, b) => (isNumber ? a - b : a.localeCompare(b));
      const rows = [...body.rows].sort((a, b) => compare(key(a), key(b)));
      body.append(...(isUp ? rows : rows.reverse()));
    });
  }
}
