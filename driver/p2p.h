/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What the NVIDIA driver offers to other kernel modules: our own declarations of its peer-to-peer
 * interface, so that no source of NVIDIA's is needed to build.
 *
 * Nothing is linked against: the functions are looked up by symbol_get() when the module is loaded,
 * so that it builds without a driver, loads with any, and does not depend on checksums of symbols.
 * Since 6.6 (and its backports) symbol_get() finds only what is exported to GPL modules, as the
 * driver's functions are from version 550 on. */
#ifndef WHERRY_P2P_H
#define WHERRY_P2P_H

#include <linux/build_bug.h>
#include <linux/types.h>

/* Pages of 4, 64 or 128 KiB; in fact it is 64. */
#define P2P_PAGE_SIZE_64KB 1
/* Minor versions only add. Version 1 (driver 340 to 575) has no flags. */
#define P2P_VERSION_MAJOR(version) ((version) >> 16)
#define P2P_TABLE_CPU_CACHEABLE 1u
/* For nvidia_p2p_get_pages_persistent(): through the PCIe BAR, even where the processor has a
 * coherent link to the GPU. */
#define P2P_GET_FORCE_PCIE 1u

struct nvidia_p2p_page {
	u64 physical_address;
	u32 registers[6];
};

struct nvidia_p2p_page_table {
	u32 version;
	u32 page_size;
	struct nvidia_p2p_page **pages;
	u32 entries;
	u8 *gpu_uuid;
	u32 flags;
};

static_assert(sizeof(struct nvidia_p2p_page) == 32);
static_assert(sizeof(struct nvidia_p2p_page_table) == 40);

/* Address and length are multiples of 64 KiB within one allocation of the calling process; may
 * sleep. If the memory is freed before nvidia_p2p_put_pages(), revoked(data) is called once, from
 * within the free and under the driver's locks, and the table is the driver's again. Putting a
 * table that was revoked does nothing. */
int nvidia_p2p_get_pages(u64 token, u32 va_space, u64 address, u64 length,
			 struct nvidia_p2p_page_table **table, void (*revoked)(void *data),
			 void *data);
int nvidia_p2p_put_pages(u64 token, u32 va_space, u64 address, struct nvidia_p2p_page_table *table);
/* For the callback, which says with it that it has done with the table. */
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *table);

/* Pages that outlive the memory's being freed: nobody is called. */
int nvidia_p2p_get_pages_persistent(u64 address, u64 length, struct nvidia_p2p_page_table **table,
				    u32 flags);
int nvidia_p2p_put_pages_persistent(u64 address, struct nvidia_p2p_page_table *table, u32 flags);

#endif
