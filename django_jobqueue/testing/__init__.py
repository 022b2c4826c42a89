"""For the tests of projects that send jobs."""
