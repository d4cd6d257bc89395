#!/usr/bin/env python3
"""Draws curve.csv of train.py as SVG: bits per byte over epochs, training and held-out text, both models.

usage: curve.py curve.csv OUT.svg      (needs nothing but Python)
"""
import csv
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 48, 12, 12, 40
COLOURS = {"glm": "#2f81f7", "dense": "#d2801f"}
NAMES = {"glm": "GLM", "dense": "dense model"}
LEAST, MOST = 1.2, 2.1
PHASES = {"dense": "512 positions", "warm": "1024, indexer learns", "sparse": "1024, indexer chooses"}


def main():
    rows = list(csv.DictReader(open(sys.argv[1])))
    last = max(float(r["epochs"]) for r in rows)
    x = lambda r: LEFT + (WIDTH - LEFT - RIGHT) * float(r["epochs"]) / last
    y = lambda v: TOP + (HEIGHT - TOP - BOTTOM) * (MOST - min(float(v), MOST)) / (MOST - LEAST)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           'font-size="12" fill="#808080">']
    text = lambda at, to, words, more="": out.append(f'<text x="{at:.1f}" y="{to:.1f}" {more}>{words}</text>')
    for tenth in range(int(LEAST * 10), int(MOST * 10) + 1):
        level = y(tenth / 10)
        out.append(f'<path d="M{LEFT} {level:.1f}H{WIDTH - RIGHT}" stroke="#808080" stroke-opacity=".25"/>')
        text(LEFT - 6, level + 4, f"{tenth / 10:.1f}", 'text-anchor="end"')
    for epoch in range(0, int(last) + 1, 2):
        text(x({"epochs": epoch}), HEIGHT - BOTTOM + 16, epoch, 'text-anchor="middle"')
    text((LEFT + WIDTH) / 2, HEIGHT - 6, "epochs", 'text-anchor="middle"')
    glm = [r for r in rows if r["model"] == "glm"]
    for mode, name in PHASES.items():
        first = next(r for r in glm if r["mode"] == mode)
        if mode != "dense":
            out.append(f'<path d="M{x(first):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#808080" stroke-dasharray="3 3"/>')
        text(x(first) + 5, TOP + (26 if mode == "sparse" else 12), name)
    for at, (model, colour) in enumerate(COLOURS.items()):
        of = [r for r in rows if r["model"] == model]
        line = " ".join(f"{x(r):.1f},{y(r['train_bpb']):.1f}" for r in of)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-opacity=".7"/>')
        for r in of:
            if r["heldout_bpb"]:
                out.append(f'<circle cx="{x(r):.1f}" cy="{y(r["heldout_bpb"]):.1f}" r="3.5" fill="{colour}"/>')
        text(LEFT + 130, TOP + 34 + 16 * at, f"{NAMES[model]}: line training text, dots held-out text", f'style="fill:{colour}"')
    out.append("</svg>")
    open(sys.argv[2], "w").write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
