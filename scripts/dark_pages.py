"""The style of pictures that scripts draw, for readers who prefer dark pages."""

DARK = """<style>@media (prefers-color-scheme: dark) {
.paper { fill: #16181c }
text { fill: #dddddd }
[stroke="#000000"] { stroke: #bbbbbb }
[stroke="#dddddd"] { stroke: #3a3d42 }
}</style>"""

# matplotlib writes colors as styles of elements, which a sheet overrides only as important.
_MATPLOTLIB = """<style>@media (prefers-color-scheme: dark) {
.paper { fill: #16181c }
text { fill: #dddddd }
[style*="stroke: #000000"] { stroke: #bbbbbb !important }
}</style>"""
_WHITE = 'style="fill: #ffffff"'


def of_matplotlib(svg):
    """A picture that matplotlib drew on white, with the style: its first white shape is the paper, on which axes need no white."""
    paper, axes = 'class="paper" fill="#ffffff"', 'style="fill: none"'
    assert _WHITE in svg and "<defs>" in svg, "not a picture of matplotlib on white"
    svg = svg.replace(_WHITE, paper, 1).replace(_WHITE, axes)
    return svg.replace("<defs>", _MATPLOTLIB + "\n <defs>", 1)
