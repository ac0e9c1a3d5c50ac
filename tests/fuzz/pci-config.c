/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration space of a PCI device. */
#include "fuzz.h"

#include <errno.h>

#include "topology/pci-config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const unsigned ids[] = { 0, WH_PCI_EXPRESS, WH_PCI_ACS, 1, 0xff };
	int rc;

	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		size_t at = wh_pci_capability(data, size, ids[i]);

		check(!at || (at >= 0x40 && at + 2 <= size && data[at] == ids[i]));
		at = wh_pci_extended(data, size, ids[i]);
		check(!at || (at >= 0x100 && at + 4 <= size && data[at] == (ids[i] & 0xff)));
	}
	rc = wh_pci_redirects(data, size);
	check(rc == 0 || rc == 1 || rc == -ENODATA);
	rc = wh_pci_relaxed(data, size);
	check(rc == 0 || rc == 1 || rc == -ENODATA);
	return 0;
}
