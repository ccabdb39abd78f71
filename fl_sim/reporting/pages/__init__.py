"""HTML pages that stand alone in one file: text, tables and pictures without scripts, fonts or other files.

* ``templates``: fills a page's template; every text is escaped.
* ``charts``: pictures as inline SVG, with their figures as a table.
* ``run_page``: runs side by side.
* ``leak_page``: what attacks found in trained models, beside what is proven.
"""
