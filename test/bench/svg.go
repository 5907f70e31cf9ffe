package main

import (
	"bytes"
	"fmt"
	"math"
	"text/template"
)

// The layout of the plot, in SVG user units.
const (
	plotLeft, plotTop  = 64.0, 56.0
	plotHeight         = 240.0
	barWidth, barGap   = 26.0, 4.0
	groupGap, caseGap  = 26.0, 44.0
	plotRight          = 24.0
	legendStep         = 110.0
	plotBottom         = 52.0
	approximateGridded = 5 // lines
)

type plot struct {
	Width, Height, Left, Right, Base, Top float64
	Legend                                []mark
	Grid                                  []mark
	Bars                                  []bar
	Groups, Cases                         []mark
}

// mark is a text at a place.
type mark struct {
	X, Y float64
	Text string
}

type bar struct {
	X, Y, Width, Height float64
	Mode, Label, Title  string
}

// svg draws the downtimes: for each case the dumps and the restores, with a bar for each
// mode.
func (rs Results) svg() ([]byte, error) {
	modes := rs.modes()
	longest := 0.0
	for _, r := range rs {
		longest = max(longest, r.DumpSeconds, r.RestoreSeconds)
	}
	step := gridStep(longest)
	top := max(step, step*math.Ceil(longest/step))
	p := plot{Left: plotLeft, Top: plotTop, Base: plotTop + plotHeight, Height: plotTop + plotHeight + plotBottom}
	for i := range int(math.Round(top/step)) + 1 {
		at := float64(i) * step
		p.Grid = append(p.Grid, mark{plotLeft - 8, p.Base - plotHeight*at/top, fmt.Sprintf("%.4g s", at)})
	}
	for i, mode := range modes {
		p.Legend = append(p.Legend, mark{plotLeft + legendStep*float64(i), 34, mode})
	}
	x := plotLeft + groupGap
	for _, l := range rs.loads() {
		from := x
		for _, verb := range []string{"dump", "restore"} {
			group := x
			for _, mode := range modes {
				if r, ok := rs.of(l, mode); ok {
					value := r.DumpSeconds
					if verb == "restore" {
						value = r.RestoreSeconds
					}
					height := plotHeight * value / top
					p.Bars = append(p.Bars, bar{
						X: x, Y: p.Base - height, Width: barWidth, Height: height, Mode: mode,
						Label: label(value), Title: fmt.Sprintf("%s, %s, %s: %s", l.title(), verb, mode, seconds(value)),
					})
				}
				x += barWidth + barGap
			}
			x -= barGap
			p.Groups = append(p.Groups, mark{(group + x) / 2, p.Base + 18, verb})
			x += groupGap
		}
		x -= groupGap
		p.Cases = append(p.Cases, mark{(from + x) / 2, p.Base + 38, l.title()})
		x += caseGap
	}
	p.Right = max(x-caseGap+groupGap, plotLeft+legendStep*float64(len(modes)))
	p.Width = p.Right + plotRight
	var out bytes.Buffer
	err := drawing.Execute(&out, p)
	return out.Bytes(), err
}

// label formats a number of seconds with two digits, or with all digits before the decimal
// point.
func label(seconds float64) string {
	if seconds >= 10 {
		return fmt.Sprintf("%.0f", seconds)
	}
	return fmt.Sprintf("%.2g", seconds)
}

// modes returns the modes that have a result, in the order in which they are shown.
func (rs Results) modes() []string {
	var modes []string
	for _, mode := range allModes() {
		for _, r := range rs {
			if r.Mode == mode {
				modes = append(modes, mode)
				break
			}
		}
	}
	return modes
}

// gridStep returns a round number of seconds that divides an axis well: 1, 2 or 5 times a
// power of ten.
func gridStep(longest float64) float64 {
	if longest <= 0 {
		return 1
	}
	rough := longest / approximateGridded
	power := math.Pow(10, math.Floor(math.Log10(rough)))
	for _, factor := range []float64{1, 2, 5} {
		if rough <= factor*power {
			return factor * power
		}
	}
	return 10 * power
}

// drawing is legible on light and on dark paper: the text follows the reader's colour
// scheme, and the colours of the bars contrast with both.
var drawing = template.Must(template.New("svg").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{printf "%.0f %.0f" .Width .Height}}" width="{{printf "%.0f" .Width}}" height="{{printf "%.0f" .Height}}" role="img" aria-label="Seconds of dump and restore, by case and mode">
<style>
text { font: 12px sans-serif; fill: #333 }
.title, .case { font-weight: bold }
.value { font-size: 10px }
.grid { stroke: #888; stroke-opacity: .35 }
.axis { stroke: #888 }
.serial { fill: #8a8f98 } .hook { fill: #3b82c4 } .fastlane { fill: #e08a1e }
@media (prefers-color-scheme: dark) { text { fill: #ddd } }
</style>
<text class="title" x="{{.Left}}" y="16">Downtime, in seconds: less is better</text>
{{- range .Legend}}
<rect class="{{.Text}}" x="{{.X}}" y="{{printf "%.0f" .Y}}" width="12" height="12" transform="translate(0 -10)"/><text x="{{.X}}" y="{{printf "%.0f" .Y}}" dx="18">{{.Text}}</text>
{{- end}}
{{- range .Grid}}
<line class="grid" x1="{{$.Left}}" x2="{{printf "%.0f" $.Right}}" y1="{{printf "%.1f" .Y}}" y2="{{printf "%.1f" .Y}}"/><text x="{{.X}}" y="{{printf "%.1f" .Y}}" dy="4" text-anchor="end">{{.Text}}</text>
{{- end}}
{{- range .Bars}}
<rect class="{{.Mode}}" x="{{printf "%.1f" .X}}" y="{{printf "%.1f" .Y}}" width="{{.Width}}" height="{{printf "%.1f" .Height}}"><title>{{.Title}}</title></rect><text class="value" x="{{printf "%.1f" .X}}" y="{{printf "%.1f" .Y}}" dx="13" dy="-4" text-anchor="middle">{{.Label}}</text>
{{- end}}
<line class="axis" x1="{{.Left}}" x2="{{printf "%.0f" .Right}}" y1="{{.Base}}" y2="{{.Base}}"/>
{{- range .Groups}}
<text x="{{printf "%.1f" .X}}" y="{{.Y}}" text-anchor="middle">{{.Text}}</text>
{{- end}}
{{- range .Cases}}
<text class="case" x="{{printf "%.1f" .X}}" y="{{.Y}}" text-anchor="middle">{{.Text}}</text>
{{- end}}
</svg>
`))
