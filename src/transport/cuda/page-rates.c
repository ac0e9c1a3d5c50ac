/* SPDX-License-Identifier: Apache-2.0 */
/* The transport cuda: whether threads or page-locking are faster for the first reading of a file,
 * by what earlier readings of the same file system have shown (pages.h). */
#include "transport/cuda/page-rates.h"

#include <stdio.h>

/* GB/s, until something has been measured: those of an H100 with ext4 and Linux 6.18
 * (docs/files.md), where one thread page-locks at 36 to 46, and eight threads read at 45. */
#define GUESS_LOCKING 38.0
#define GUESS_THREAD 5.6 /* of each thread */
/* Letting the pages go again takes a quarter of the time that locking them takes. */
#define WITH_LETTING_GO 0.8
/* Readings of fewer bytes are about something else. */
#define LEAST ((uint64_t)64 << 20)
/* One that was disturbed is slow, so the fastest counts; but each later one makes it less by this,
 * so that a machine may become slower. */
#define FORGET 0.98

/* Under the lock. */
static struct wh_page_rate *rate_find(struct wh_page_rates *rates, dev_t device)
{
	for (unsigned i = 0; i < WH_PAGE_RATES; i++)
		if (rates->of[i].used && rates->of[i].device == device)
			return &rates->of[i];
	return NULL;
}

void wh_page_rates_init(struct wh_page_rates *rates)
{
	*rates = (struct wh_page_rates){ 0 };
	pthread_mutex_init(&rates->lock, NULL);
}

void wh_page_rates_free(struct wh_page_rates *rates)
{
	pthread_mutex_destroy(&rates->lock);
}

void wh_page_rates_learn(struct wh_page_rates *rates, dev_t device, enum wh_page_way way,
			 uint64_t bytes, int64_t ns)
{
	struct wh_page_rate *rate;
	double found;

	if (bytes < LEAST || ns <= 0)
		return;
	found = (double)bytes / (double)ns;
	pthread_mutex_lock(&rates->lock);
	rate = rate_find(rates, device);
	if (!rate) {
		rate = &rates->of[rates->next++ % WH_PAGE_RATES];
		*rate = (struct wh_page_rate){ .used = true, .device = device };
	}
	rate->GBps[way] *= FORGET;
	if (found > rate->GBps[way])
		rate->GBps[way] = found;
	pthread_mutex_unlock(&rates->lock);
}

bool wh_page_rates_prefer_threads(struct wh_page_rates *rates, dev_t device, unsigned threads,
				  char *why, size_t size)
{
	const struct wh_page_rate *rate;
	double by_threads = 0, locking = 0;
	bool guess_threads, guess_locking;

	pthread_mutex_lock(&rates->lock);
	rate = rate_find(rates, device);
	if (rate) {
		by_threads = rate->GBps[WH_PAGE_BY_THREADS];
		locking = rate->GBps[WH_PAGE_BY_LOCKING];
	}
	pthread_mutex_unlock(&rates->lock);
	guess_threads = !(by_threads > 0);
	guess_locking = !(locking > 0);
	if (guess_threads)
		by_threads = threads * GUESS_THREAD;
	if (guess_locking)
		locking = GUESS_LOCKING;
	if (by_threads <= WITH_LETTING_GO * locking)
		return false;
	snprintf(why, size,
		 "it is read the first time, by threads at %.3g GB/s (%s) instead of page-locking "
		 "at %.3g (%s)",
		 by_threads, guess_threads ? "typical" : "measured", locking,
		 guess_locking ? "typical" : "measured");
	return true;
}
