/* SPDX-License-Identifier: Apache-2.0 */
/* A doubly linked list whose links live inside its elements. */
#ifndef WH_UTIL_LIST_H
#define WH_UTIL_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct wh_list {
	struct wh_list *next, *prev;
};

#define wh_container(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

static inline void wh_list_init(struct wh_list *head)
{
	head->next = head->prev = head;
}

static inline bool wh_list_empty(const struct wh_list *head)
{
	return head->next == head;
}

static inline void wh_list_append(struct wh_list *head, struct wh_list *link)
{
	link->next = head;
	link->prev = head->prev;
	head->prev->next = link;
	head->prev = link;
}

/* Add a link at the front, where wh_list_take() finds it first. */
static inline void wh_list_push(struct wh_list *head, struct wh_list *link)
{
	wh_list_append(head->next, link);
}

/* Take a link out of its list. A link in no list (zeroed, or removed before) is left alone. */
static inline void wh_list_remove(struct wh_list *link)
{
	if (!link->next)
		return;
	link->next->prev = link->prev;
	link->prev->next = link->next;
	link->next = link->prev = NULL;
}

/* Remove and return the first link; NULL: the list is empty. */
static inline struct wh_list *wh_list_take(struct wh_list *head)
{
	struct wh_list *link = head->next;

	if (link == head)
		return NULL;
	wh_list_remove(link);
	return link;
}

#endif
