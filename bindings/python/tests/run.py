# SPDX-License-Identifier: Apache-2.0
"""Run one file of tests with unittest, and print a line for each case as cmocka does, which
scripts/tally counts. Ends after TESTS_SECONDS (240).

run.py FILE
"""
import faulthandler
import importlib
import os
import re
import sys
import time
import unittest

# How unittest and numpy tell that bytes differ.
BYTES = re.compile(r"AssertionError.*\b(b['\"]|bytearray|memoryview|array\()|Arrays are not equal")
HERE = os.path.dirname(os.path.abspath(__file__))


class Lines(unittest.TestResult):
    def name(self, test):
        return test.id().split(".", 1)[-1]

    def say(self, word, test, text=""):
        print(text, end="")
        print(f"[{word}] {self.name(test)}", flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.say(" RUN      ", test)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.say("       OK ", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say("  FAILED  ", test, self.failures[-1][1])
        # scripts/tally knows by this line that a second run must not take it back.
        if BYTES.search(self.failures[-1][1]):
            print("WRONG BYTES", flush=True)

    def addError(self, test, err):
        super().addError(test, err)
        self.say("  FAILED  ", test, self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            broken = issubclass(err[0], test.failureException)
            said = (self.failures if broken else self.errors)[-1][1]
            self.say("  FAILED  ", test, f"{subtest._subDescription()}\n{said}")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say("  SKIPPED ", test, reason + "\n")


def main():
    # No peer is lost because the machine is busy. Tests of lost peers set a time of their own.
    os.environ.setdefault("WHERRY_TIMEOUT", "60s")
    faulthandler.enable()
    faulthandler.dump_traceback_later(int(os.environ.get("TESTS_SECONDS", "240")), exit=True)
    sys.path[:0] = [os.path.dirname(HERE), HERE]
    # By its name, so that processes that are spawned find it.
    module = importlib.import_module(os.path.basename(sys.argv[1])[: -len(".py")])
    result = Lines()
    began = time.monotonic()
    unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    print(f"{result.testsRun} tests in {time.monotonic() - began:.1f} s")
    if not result.wasSuccessful():
        return 1
    return 77 if result.testsRun and len(result.skipped) == result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
