"""The style sheet of plan pages: light and dark, scoped so that notebooks keep their own."""

_LIGHT = """
--bg:#ffffff;--fg:#1c2330;--soft:#5d6776;--line:#dfe3ea;--panel:#f6f7fa;--empty:#e9ecf2;
--c1:#3467b0;--c2:#e08a2c;--c3:#2f9477;--c4:#b0528a;--c5:#8a92a0;--c6:#c2a02a;
--a0:#d2483e;--a1:#2f6fd0;--a2:#2f9477;--a3:#9a4fb8;
--tensor:#eef1f6;--piece:#9db4d6;--edge:#7d8797;--limit:#c22f2f;--on:#ffffff;--good:#23784f;
--warn:#a35d00;--band:#f3f5f9;--alt:#e9edf4;
"""
_DARK = """
--bg:#15181e;--fg:#e4e8ef;--soft:#9aa4b3;--line:#303743;--panel:#1c2129;--empty:#2a303b;
--c1:#6f9fe6;--c2:#eda14f;--c3:#57b99b;--c4:#d380b2;--c5:#8f98a8;--c6:#d9bd55;
--a0:#f0776d;--a1:#76a9f5;--a2:#57b99b;--a3:#c184dd;
--tensor:#262c36;--piece:#4a6796;--edge:#7f8a9b;--limit:#ff7a70;--on:#11141a;--good:#63c596;
--warn:#e6a94e;--band:#1a1f27;--alt:#20262f;
"""
# Notebooks choose a theme of their own, whatever the system's is.
_NOTEBOOK_LIGHT = '[data-jp-theme-light="true"],.vscode-light'
_NOTEBOOK_DARK = '[data-jp-theme-light="false"],.vscode-dark'

_RULES = """
color:var(--fg);background:var(--bg);font:13px/1.45 system-ui,"Segoe UI",Roboto,sans-serif;
max-width:1020px;padding:14px 18px;border-radius:8px;box-sizing:border-box}
.swp *{box-sizing:border-box}
.swp h2{font-size:19px;margin:0 0 2px;font-weight:650}
.swp h3{font-size:13px;margin:0 0 8px;font-weight:650}
.swp p{margin:0 0 4px}
.swp .soft,.swp .small{color:var(--soft)}
.swp code,.swp .mono,.swp td.spec{font-family:ui-monospace,"Cascadia Mono",Menlo,Consolas,monospace;
font-size:12px}
.swp .badge{display:inline-block;padding:0 8px;border-radius:9px;font-size:12px;font-weight:600;
border:1px solid currentColor;vertical-align:2px;margin-left:8px}
.swp .good{color:var(--good)}.swp .warn{color:var(--warn)}
.swp .grid{display:flex;flex-wrap:wrap;gap:12px;margin:12px 0}
.swp .box{background:var(--panel);border:1px solid var(--line);border-radius:7px;
padding:11px 13px;flex:1 1 300px;min-width:0}
.swp .wide{flex-basis:100%}.swp .half{flex:1 1 440px}.swp .fit{flex:0 1 auto}
.swp .stack{display:flex;flex-direction:column;gap:12px;min-width:0}
.swp .stack .box{flex:1 1 auto}
.swp svg{max-width:100%;height:auto;display:block;overflow:visible}
.swp svg text{fill:var(--fg);font-size:12px}
.swp svg text.small{fill:var(--soft);font-size:11px}
.swp svg text.on{fill:var(--on);font-size:11px;font-weight:600}
.swp svg text.rank{fill:var(--fg);font-size:11px}
.swp svg text.axis{font-size:11.5px;font-weight:600}
.swp ul.words{margin:0;padding-left:17px}.swp ul.words li{margin:0 0 3px}
.swp ul.legend{list-style:none;margin:9px 0 0;padding:0;display:flex;flex-wrap:wrap;gap:3px 16px}
.swp ul.legend li{display:flex;gap:6px;align-items:center;font-size:12px}
.swp ul.legend i{width:10px;height:10px;border-radius:2px;display:inline-block;flex:none}
.swp ul.legend b{font-weight:600}
.swp .scroll{overflow:auto;max-height:620px}
.swp table{border-collapse:collapse;width:100%;font-size:12px;color:var(--fg);margin:0}
.swp th,.swp td{text-align:left;padding:4px 10px 4px 0;vertical-align:middle;border:0;
background:transparent;color:inherit;white-space:nowrap}
.swp th{font-weight:600;color:var(--soft);position:sticky;top:0;background:var(--panel)}
.swp tbody tr{border-top:1px solid var(--line);background:transparent}
.swp tr.layer td{font-weight:650;padding-top:9px}
.swp td.num,.swp th.num{text-align:right}
.swp td.wrap{white-space:normal}
.swp td .cell{display:flex;gap:7px;align-items:center}
.swp td .cell svg{flex:none}
.swp td .cell.same{opacity:.45}
.swp dl{display:grid;grid-template-columns:auto 1fr auto 1fr;gap:2px 12px;margin:0 0 6px}
.swp dt{color:var(--soft)}.swp dd{margin:0;font-weight:600}
.swp details{border-top:1px solid var(--line);padding:9px 0}
.swp summary{cursor:pointer;font-weight:650}.swp details h2{margin-top:10px}
.swp .empty{fill:var(--empty)}
.swp .tensor{fill:var(--tensor);stroke:var(--edge);stroke-width:1}
.swp .piece{fill:var(--piece)}.swp .partial{fill-opacity:.45}

.swp .device{fill:var(--bg);stroke:var(--edge)}
.swp .host{fill:var(--empty);stroke:var(--line)}
.swp .arrow{fill:none;stroke-width:1.5}
.swp .limit{stroke:var(--limit);stroke-width:1.5;stroke-dasharray:5 3}
.swp .dot{fill:var(--limit)}
.swp .band{fill:var(--band)}.swp .alt{fill:var(--alt)}
"""


def style_sheet() -> str:
    """Rules for `.swp`, the element that holds a plan."""
    colors = "".join(
        f".swp .c{i}{{fill:var(--c{i});background:var(--c{i})}}" for i in range(1, 7)
    ) + "".join(
        f".swp .a{i}{{stroke:var(--a{i})}}.swp svg text.t{i}{{fill:var(--a{i})}}" for i in range(4)
    )
    light, dark = _LIGHT.replace("\n", ""), _DARK.replace("\n", "")
    return (
        f".swp{{{light}{_RULES}{colors}"
        f"@media(prefers-color-scheme:dark){{.swp{{{dark}}}}}"
        f"{_scoped(_NOTEBOOK_LIGHT)}{{{light}}}{_scoped(_NOTEBOOK_DARK)}{{{dark}}}"
    )


def _scoped(selectors: str) -> str:
    return ",".join(f"{selector} .swp" for selector in selectors.split(","))
