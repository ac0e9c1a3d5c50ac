/* SPDX-License-Identifier: Apache-2.0 */
/* The live view: the lines of a sample on a terminal, with ncurses, and its keys. */
#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* After the others: it defines names such as OK and lines. */
#include <curses.h>

#include "top/top.h"

#define KEY_WAIT 100 /* ms */

struct terminal {
	struct top_view view;
	struct top_sample sample;
	struct top_line lines[TOP_LINES];
	int top; /* the first line that is shown */
	bool typing; /* a filter is being typed */
	double interval;
	bool color;
};

static int line_attribute(const struct terminal *terminal, const struct top_line *line)
{
	static const int attributes[] = { [TINT_FAINT] = A_DIM, [TINT_STRONG] = A_BOLD };

	if (line->plain)
		return A_NORMAL;
	if (line->tint == TINT_FAINT || line->tint == TINT_STRONG)
		return attributes[line->tint];
	return terminal->color ? COLOR_PAIR((int)line->tint + 1) : A_BOLD;
}

static void terminal_draw(struct terminal *terminal)
{
	int rows = getmaxy(stdscr), columns = getmaxx(stdscr),
	    count = (int)top_render(&terminal->sample, &terminal->view, terminal->lines, TOP_LINES),
	    room = rows - 1;

	if (terminal->top > count - room)
		terminal->top = count - room;
	if (terminal->top < 0)
		terminal->top = 0;
	erase();
	for (int row = 0; row < room && terminal->top + row < count; row++) {
		const struct top_line *line = &terminal->lines[terminal->top + row];
		int attribute = line_attribute(terminal, line);

		attron(attribute);
		/* A column may take up to four bytes of UTF-8; the terminal's edge cuts the rest.
		 */
		mvaddnstr(row, 0, line->text, columns * 4);
		attroff(attribute);
	}
	if (rows > 0) {
		attron(A_REVERSE);
		if (terminal->typing)
			mvprintw(rows - 1, 0, "names with: %s", terminal->view.filter);
		else
			mvaddnstr(rows - 1, 0, "q quit  h help  s sort  r reverse  / filter",
				  columns);
		attroff(A_REVERSE);
	}
	refresh();
}

/* A key while a filter is typed. */
static void terminal_type(struct terminal *terminal, int key)
{
	char *filter = terminal->view.filter;
	size_t length = strlen(filter);

	if (key == '\n' || key == '\r' || key == KEY_ENTER) {
		terminal->typing = false;
	} else if (key == 27) {
		*filter = '\0';
		terminal->typing = false;
	} else if ((key == KEY_BACKSPACE || key == 127 || key == 8) && length) {
		filter[length - 1] = '\0';
	} else if (key < 256 && isprint(key) && length + 1 < sizeof(terminal->view.filter)) {
		filter[length] = (char)key;
		filter[length + 1] = '\0';
	}
}

static void terminal_change_interval(struct terminal *terminal, struct top_sampler *sampler,
				     double factor)
{
	double interval = terminal->interval * factor;

	if (interval < 0.1 || interval > 60)
		return;
	terminal->interval = interval;
	top_interval(sampler, interval);
}

/* Act on a key. False: quit. */
static bool terminal_press(struct terminal *terminal, struct top_sampler *sampler, int key)
{
	if (terminal->typing) {
		terminal_type(terminal, key);
		return true;
	}
	switch (key) {
	case 'q':
	case 'Q':
		return false;
	case 'h':
	case '?':
		terminal->view.help = !terminal->view.help;
		break;
	case 's':
		terminal->view.order = (terminal->view.order + 1) % TOP_ORDERS;
		break;
	case 'p':
		terminal->view.peer_order = (terminal->view.peer_order + 1) % TOP_PEER_ORDERS;
		break;
	case 'r':
		terminal->view.reverse = !terminal->view.reverse;
		break;
	case 'e':
		terminal->view.all_peers = !terminal->view.all_peers;
		break;
	case 'w':
		terminal->view.why = !terminal->view.why;
		break;
	case '/':
		terminal->typing = true;
		break;
	case 27:
		terminal->view.filter[0] = '\0';
		break;
	case '+':
		terminal_change_interval(terminal, sampler, 2);
		break;
	case '-':
		terminal_change_interval(terminal, sampler, 0.5);
		break;
	case ' ':
		terminal->view.paused = !terminal->view.paused;
		break;
	case KEY_DOWN:
		terminal->top++;
		break;
	case KEY_UP:
		terminal->top--;
		break;
	case KEY_HOME:
		terminal->top = 0;
		break;
	default:
		break;
	}
	return true;
}

static void terminal_set_colors(struct terminal *terminal, const struct screen *screen)
{
	static const short colors[] = { [TINT_GOOD] = COLOR_GREEN,
					[TINT_FAIR] = COLOR_CYAN,
					[TINT_POOR] = COLOR_YELLOW,
					[TINT_BAD] = COLOR_RED };

	terminal->color = screen->color && has_colors() && start_color() == OK;
	if (!terminal->color)
		return;
	use_default_colors();
	for (short i = 0; i < (short)(sizeof(colors) / sizeof(colors[0])); i++)
		init_pair((short)(i + 1), colors[i], -1);
}

int top_interactive(struct top_sampler *sampler, const struct screen *screen, double interval,
		    bool why)
{
	struct terminal *terminal = calloc(1, sizeof(*terminal));
	SCREEN *opened;
	bool go_on = true, changed = true;
	uint64_t shown = 0;

	if (!terminal)
		return fail(ENOMEM, "out of memory");
	/* For UTF-8; numbers keep the C format. */
	setlocale(LC_CTYPE, "");
	opened = newterm(NULL, stdout, stdin);
	if (!opened) {
		free(terminal);
		return fail(ENODEV, "unknown terminal (TERM); try --once");
	}
	terminal->interval = interval;
	terminal->view.ascii = screen->ascii;
	terminal->view.why = why;
	cbreak();
	noecho();
	keypad(stdscr, TRUE);
	set_escdelay(25);
	curs_set(0);
	terminal_set_colors(terminal, screen);
	timeout(KEY_WAIT);
	while (go_on) {
		uint64_t turns = top_turns(sampler);
		int key;

		if (!terminal->view.paused && turns != shown) {
			top_take(sampler, 0, 0, &terminal->sample);
			shown = turns;
			changed = true;
		}
		if (changed)
			terminal_draw(terminal);
		key = getch();
		changed = key != ERR;
		if (key != ERR && key != KEY_RESIZE)
			go_on = terminal_press(terminal, sampler, key);
	}
	endwin();
	delscreen(opened);
	free(terminal);
	return EXIT_PASS;
}
