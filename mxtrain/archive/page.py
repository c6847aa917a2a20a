"""The style of report pages."""

from __future__ import annotations

STYLE = """
:root{--ink:#1c2430;--pale:#667085;--rule:#e3e7ee;--back:#f6f7fa;--card:#fff;--link:#1d4ed8}
*{box-sizing:border-box}
body{margin:0;font:15px/1.5 system-ui,"Segoe UI","Helvetica Neue",Arial,"Noto Sans","Noto Sans CJK SC",sans-serif;
color:var(--ink);background:var(--back);overflow-wrap:anywhere}
header,main{max-width:1360px;margin:0 auto;padding:0 24px}
header{padding-top:28px}
h1{font-size:26px;margin:0}
header p{color:var(--pale);margin:4px 0 12px}
nav,.legend{display:flex;flex-wrap:wrap;gap:6px 18px;font-size:14px;overflow-wrap:anywhere}
nav a{color:var(--link);text-decoration:none}
section{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:18px 22px;margin:18px 0}
h2{font-size:19px;margin:0 0 12px;overflow-wrap:anywhere}
h3{font-size:16px;margin:22px 0 8px}
h4{font-size:14px;margin:16px 0 6px;color:var(--pale);font-weight:600}
.scroll{overflow-x:auto;
background:linear-gradient(to left,var(--card) 30px,transparent) right/60px 100% no-repeat local,
linear-gradient(to left,#0003,transparent) right/14px 100% no-repeat}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th{text-align:left;color:var(--pale);font-weight:600;white-space:nowrap}
th,td{padding:5px 12px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top}
td{overflow-wrap:break-word;max-width:420px}
thead+tbody td{white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.card td{max-width:900px;overflow-wrap:anywhere}
.card td:first-child{white-space:nowrap;padding-right:24px}
tbody tr:last-child td{border-bottom:0}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:18px;margin-top:14px}
figure{margin:0;min-width:0}
figcaption{font-size:14px;font-weight:600;margin-bottom:4px;overflow-wrap:anywhere}
.charts svg{width:100%;height:auto;display:block;max-width:760px}
.grid{stroke:#e8ebf1;stroke-width:1}
.tick{font-size:12px;fill:#667085}
.swatch{width:24px;height:8px;vertical-align:middle}
.figures{display:flex;flex-wrap:wrap;gap:20px;align-items:flex-start}
.figures img{max-width:100%;height:auto;border:1px solid var(--rule);border-radius:6px;max-height:560px;width:auto}
pre{background:#10151f;color:#e6ebf5;padding:12px 16px;border-radius:8px;overflow-x:auto;font-size:13px;margin:6px 0}
code{font-size:13px;overflow-wrap:anywhere}
.notes{color:var(--pale);font-size:14px;margin:10px 0 0}
ul.notes{padding-left:18px}
@media(max-width:640px){header,main{padding:0 12px}section{padding:14px}.tick{font-size:18px}
.card td:first-child{white-space:normal;padding-right:12px;width:28%}}
@media print{body{background:#fff}section{break-inside:avoid-page;border:0;padding:0}pre{color:#000;background:#eee}}
""".replace("\n", "")
