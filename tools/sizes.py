"""Print the ten longest files and functions; fail over the house's limits without a reason.

A file or function that must be longer says why in a comment: `# size: <reason>`.
"""

import ast
import sys
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def main() -> int:
    files, functions, broken = [], [], []
    for path in sorted(Path("src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        files.append((len(lines), str(path)))
        if len(lines) > MAX_FILE_LINES and "# size:" not in text:
            broken.append(f"{path}: {len(lines)} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                length = node.end_lineno - node.lineno + 1
                functions.append((length, f"{path}:{node.lineno} {node.name}"))
                body = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                if length > MAX_FUNCTION_LINES and "# size:" not in body:
                    broken.append(f"{path}:{node.lineno} {node.name}: {length} lines")
    for title, rows in (("files", files), ("functions", functions)):
        print(f"longest {title}")
        for length, name in sorted(rows, reverse=True)[:10]:
            print(f"  {length:4} {name}")
    for problem in broken:
        print(f"too long: {problem}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
