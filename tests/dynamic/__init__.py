from tests.kit import versions

versions.require("2.2")
