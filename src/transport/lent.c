/* SPDX-License-Identifier: Apache-2.0 */
/* transport/lent.c: slots of shared memory that an initiator lends to the owner of a file */
#include "transport/lent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/pinned.h"

_Static_assert(WH_LENT_SLOTS <= WH_REQUEST_SLOTS && WH_REQUEST_SLOTS <= 64, "a bit for each");

/* ---- the owner ------------------------------------------------------------------------------ */

int wh_lent_map(int fd, uint32_t count, struct wh_lent **out)
{
	size_t length = count * WH_SLOT;
	struct wh_lent *lent = calloc(1, sizeof(*lent));

	if (!lent)
		return -ENOMEM;
	lent->base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (lent->base == MAP_FAILED) {
		int error = -errno;

		free(lent);
		return error;
	}
	madvise(lent->base, length, MADV_DONTFORK);
	atomic_init(&lent->users, 1);
	lent->count = count;
	*out = lent;
	return 0;
}

void wh_lent_hold(struct wh_lent *lent)
{
	atomic_fetch_add(&lent->users, 1);
}

void wh_lent_release(struct wh_lent *lent)
{
	if (!lent || atomic_fetch_sub(&lent->users, 1) != 1)
		return;
	munmap(lent->base, lent->count * WH_SLOT);
	free(lent);
}

char *wh_lent_slot(const struct wh_lent *lent, uint32_t number)
{
	return lent->base + (number - 1) * WH_SLOT;
}

/* ---- the initiator -------------------------------------------------------------------------- */

int wh_lender_open(struct wh_lender *lender)
{
	size_t length = WH_LENT_SLOTS * WH_SLOT;
	int fd = memfd_create("wherry-lent", MFD_CLOEXEC | MFD_ALLOW_SEALING), error;
	char *base;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)length) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		goto err_close;
	base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		goto err_close;
	madvise(base, length, MADV_DONTFORK);
	lender->fd = fd;
	lender->base = base;
	atomic_init(&lender->free, UINT64_MAX >> (64 - WH_LENT_SLOTS));
	atomic_init(&lender->touched, 0);
	return 0;

err_close:
	error = -errno;
	close(fd);
	return error;
}

void wh_lender_close(struct wh_lender *lender)
{
	if (!lender->base)
		return;
	munmap(lender->base, WH_LENT_SLOTS * WH_SLOT);
	close(lender->fd);
	lender->base = NULL;
}

/* Otherwise the owner would, whom the kernel would charge for them. Linux before 5.14 does not know
 * the advice. */
static void lender_touch(struct wh_lender *lender, uint32_t number)
{
	uint64_t bit = UINT64_C(1) << (number - 1);

	if (!(atomic_fetch_or(&lender->touched, bit) & bit))
		madvise(wh_lender_slot(lender, number), WH_SLOT, MADV_POPULATE_WRITE);
}

uint32_t wh_lender_take(struct wh_lender *lender)
{
	uint64_t left = atomic_load(&lender->free);
	uint32_t number;

	/* The lowest one: few slots, which stay in the CPUs' caches. */
	do {
		if (!left)
			return 0;
		number = (uint32_t)__builtin_ctzll(left) + 1;
	} while (!atomic_compare_exchange_weak(&lender->free, &left, left & (left - 1)));
	lender_touch(lender, number);
	return number;
}

void wh_lender_give(struct wh_lender *lender, uint32_t number)
{
	atomic_fetch_or(&lender->free, UINT64_C(1) << (number - 1));
}

char *wh_lender_slot(const struct wh_lender *lender, uint32_t number)
{
	return lender->base + (number - 1) * WH_SLOT;
}
