"""The style of pictures that scripts draw, for readers who prefer dark pages."""

DARK = """<style>@media (prefers-color-scheme: dark) {
.paper { fill: #16181c }
text { fill: #dddddd }
[stroke="#000000"] { stroke: #bbbbbb }
[stroke="#dddddd"] { stroke: #3a3d42 }
}</style>"""
