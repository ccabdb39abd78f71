"""HTML pages that stand alone in one file: text, tables and pictures without scripts, fonts or other files.

* ``html_page``: a page, its style in light and dark, and tables.
* ``svg_charts``: pictures as inline SVG, whose marks name their figures when pointed at.
* ``leak_page``: what attacks found in trained models, beside what is proven.
"""
