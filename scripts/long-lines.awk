# SPDX-License-Identifier: Apache-2.0
# Report lines of C files and shell scripts that are longer than 100 columns, tabs reaching to the
# next multiple of 8. Text that the shell does not read line by line is left out: here-documents,
# quotes of several lines, and lines that are too long because of one quoted word of 50 characters
# or more.

function with_spaces(line)
{
	while (match(line, /\t/))
		line = substr(line, 1, RSTART - 1) sprintf("%*s", 8 - (RSTART - 1) % 8, "") \
			substr(line, RSTART + 1)
	return line
}

function report()
{
	print FILENAME ":" FNR ": longer than 100 columns"
}

# `line` without its long quoted words.
function without_words(line, start, at)
{
	start = 1
	while (match(substr(line, start), /'[^']*'|"[^"]*"/)) {
		at = start + RSTART - 1
		if (RLENGTH < 50) {
			start = at + RLENGTH
			continue
		}
		line = substr(line, 1, at - 1) substr(line, at + RLENGTH)
		start = at
	}
	return line
}

{
	$0 = with_spaces($0)
}

FILENAME ~ /\.[ch]$/ {
	if (length($0) > 100)
		report()
	next
}

FNR == 1 {
	end = quote = ""
}

{
	if (end != "") {
		text = $0
		if (strips)
			sub(/^ */, "", text)
		if (text == end)
			end = ""
		next
	}
	before = quote
	for (i = 1; i <= length($0); i++) {
		c = substr($0, i, 1)
		if (quote == "'") {
			if (c == "'")
				quote = ""
		} else if (c == "\\")
			i++
		else if (c == "\"" || (c == "'" && quote == ""))
			quote = quote == c ? "" : c
		else if (c == "#" && quote == "" && (i == 1 || substr($0, i - 1, 1) == " "))
			break
	}
	if (length($0) > 100 && before == "" && quote == "" && length(without_words($0)) > 100)
		report()
	if (quote == "" && $0 !~ /<<</ && match($0, /<<-?['"\\]?[A-Za-z_]+/)) {
		end = substr($0, RSTART + 2, RLENGTH - 2)
		strips = sub(/^-/, "", end)
		gsub(/['"\\]/, "", end)
	}
}
