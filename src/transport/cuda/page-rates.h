/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page-rates.h: how fast a GPU reads files for the first time: by threads that read into slots, and
 * out of pages that are page-locked ahead of the copies. Which is faster depends on the CPUs, and
 * on the file system: how large the pages of its page cache are.
 */
#ifndef WH_TRANSPORT_CUDA_PAGE_RATES_H
#define WH_TRANSPORT_CUDA_PAGE_RATES_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum wh_page_way { WH_PAGE_BY_THREADS, WH_PAGE_BY_LOCKING, WH_PAGE_WAYS };

/* Of one file system. */
struct wh_page_rate {
	bool used;
	dev_t device;
	double GBps[WH_PAGE_WAYS]; /* 0: not measured */
};

#define WH_PAGE_RATES 8 /* file systems that are remembered */

struct wh_page_rates {
	pthread_mutex_t lock; /* of what follows */
	unsigned next; /* the one that is forgotten first */
	struct wh_page_rate of[WH_PAGE_RATES];
};

void wh_page_rates_init(struct wh_page_rates *rates);
void wh_page_rates_free(struct wh_page_rates *rates);
/* So many bytes of a file, all of them in the page cache, took so long. Thread-safe. */
void wh_page_rates_learn(struct wh_page_rates *rates, dev_t device, enum wh_page_way way,
			 uint64_t bytes, int64_t ns);
/* Are so many threads, each with a CPU, faster than page-locking? Then `why` says how fast both
 * are. Thread-safe. */
bool wh_page_rates_prefer_threads(struct wh_page_rates *rates, dev_t device, unsigned threads,
				  char *why, size_t size);

#endif
